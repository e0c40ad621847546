//! The client's requests that only the server answered, and why: for `node why`.

use super::super::wire::header::command;

/// The commands that the note names at most: a client waits for few kinds of requests often.
const NAMED_MAX: usize = 5;

/// A command, its name, and the reason why the server answers it.
type CrossingCommand = (u16, &'static str, &'static str);

/// In the order in which equal counts are named.
const COMMANDS: [CrossingCommand; 9] = [
    (command::CREATE, "CREATE", "the server opens files"),
    (
        command::SET_INFO,
        "SET_INFO",
        "renames and deletions may fail",
    ),
    (command::FLUSH, "FLUSH", "the server has all data then"),
    (
        command::CLOSE,
        "CLOSE",
        "it deletes a file, or has no licence",
    ),
    (command::READ, "READ", "not read ahead, or no licence"),
    (command::WRITE, "WRITE", "no licence"),
    (
        command::QUERY_INFO,
        "QUERY_INFO",
        "lengths and times are the server's",
    ),
    (
        command::QUERY_DIRECTORY,
        "QUERY_DIRECTORY",
        "not listed ahead",
    ),
    (command::LOCK, "LOCK", "the server locks"),
];

/// Frames of the client's whose answers came from the server, by the command of their first request.
#[derive(Debug, Default)]
pub(super) struct CrossedRequests([u64; COMMANDS.len()]);

impl CrossedRequests {
    /// The server's answer to a frame that begins with this command goes to the client.
    pub(super) fn count(&mut self, command: u16) {
        let place = COMMANDS.iter().position(|(of, ..)| *of == command);
        if let Some(place) = place {
            self.0[place] += 1;
        }
    }

    /// The most frequent ones, with the reasons; `None` if there were none.
    pub(super) fn text(&self) -> Option<String> {
        let mut counts: Vec<_> = self.0.iter().zip(&COMMANDS).collect();
        counts.retain(|(count, _)| **count > 0);
        counts.sort_by_key(|(count, _)| std::cmp::Reverse(**count));
        counts.truncate(NAMED_MAX);
        let named = counts
            .iter()
            .map(|(count, (_, name, reason))| format!("{count} {name} ({reason})"));
        let named: Vec<String> = named.collect();
        (!named.is_empty()).then(|| format!("waited for the server: {}", named.join(", ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn most_frequent_requests_are_named_with_their_reasons() {
        let mut crossed = CrossedRequests::default();
        assert_eq!(crossed.text(), None);
        crossed.count(command::ECHO);
        assert_eq!(crossed.text(), None);
        for _ in 0..3 {
            crossed.count(command::FLUSH);
        }
        crossed.count(command::CREATE);
        let text = crossed.text().unwrap();
        assert_eq!(
            text,
            "waited for the server: 3 FLUSH (the server has all data then), 1 CREATE (the server opens files)"
        );
    }
}
