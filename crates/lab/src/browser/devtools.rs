//! The DevTools protocol over two pipes: commands with numbers, answers to them, and events.

use std::collections::VecDeque;
use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use host::{command, kernel, wait};

/// Chromium reads commands at descriptor 3 and writes at 4. The shell puts its standard input and output there.
const SHELL: &str = "exec \"$0\" \"$@\" 3<&0 4>&1 0</dev/null 1>&2";

/// Time limit for a browser to end after the request to do so.
const END_LIMIT: Duration = Duration::from_secs(5);

/// Interval at which a wait checks whether the lab is to end.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// A running browser and its two pipes.
#[derive(Debug)]
pub(super) struct DevToolsPipe {
    child: Child,
    /// Pipe for commands; `None` after the request to end.
    commands: Option<ChildStdin>,
    messages: Receiver<Value>,
    /// Events that came while an answer was waited for.
    early: VecDeque<DevToolsMessage>,
    /// The number of the last command.
    number: u64,
}

/// A message of the browser's.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum DevToolsMessage {
    /// An event.
    Event {
        /// Its name.
        method: String,
        /// Parameters of the event.
        parameters: Value,
    },
    /// The answer to a command.
    Answer {
        /// The command's number.
        number: u64,
        /// The result, or nothing beside the error.
        result: Value,
        /// Why it failed, if it did.
        error: Option<String>,
    },
}

impl DevToolsMessage {
    fn of(mut message: Value) -> Self {
        match message["id"].as_u64() {
            Some(number) => Self::Answer {
                number,
                result: message["result"].take(),
                error: message["error"]["message"].as_str().map(str::to_owned),
            },
            None => Self::Event {
                method: message["method"].as_str().unwrap_or_default().to_owned(),
                parameters: message["params"].take(),
            },
        }
    }
}

impl DevToolsPipe {
    /// Starts a browser in a network namespace.
    ///
    /// # Errors
    /// When it cannot be started.
    pub(super) fn start(
        program: &Path,
        options: &[String],
        namespace: &Path,
        log: &Path,
    ) -> Result<Self> {
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(log)
            .with_context(|| format!("opening {}", log.display()))?;
        let mut shell = command::new("sh");
        shell.args(["-c", SHELL]).arg(program).args(options);
        shell
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log);
        std::os::unix::process::CommandExt::process_group(&mut shell, 0);
        kernel::prepare_child(&mut shell, Some(namespace))?;
        let mut child = shell
            .spawn()
            .with_context(|| format!("starting {}", program.display()))?;
        let commands = child.stdin.take();
        let output = child.stdout.take().context("the browser has no pipe")?;
        let (sender, messages) = mpsc::channel();
        thread::spawn(move || {
            for message in BufReader::new(output).split(0) {
                let parsed = message
                    .ok()
                    .and_then(|bytes| serde_json::from_slice(&bytes).ok());
                let Some(parsed) = parsed else {
                    return;
                };
                if sender.send(parsed).is_err() {
                    return;
                }
            }
        });
        Ok(Self {
            child,
            commands,
            messages,
            early: VecDeque::new(),
            number: 0,
        })
    }

    /// Sends a command, and gives its number.
    ///
    /// # Errors
    /// When the browser has ended.
    pub(super) fn tell(
        &mut self,
        session: Option<&str>,
        method: &str,
        parameters: &Value,
    ) -> Result<u64> {
        self.number += 1;
        let mut command = json!({ "id": self.number, "method": method, "params": parameters });
        if let Some(session) = session {
            command["sessionId"] = json!(session);
        }
        let mut bytes = command.to_string().into_bytes();
        bytes.push(0);
        let commands = self.commands.as_mut().context("the browser was ended")?;
        commands.write_all(&bytes).context("telling the browser")?;
        commands.flush()?;
        Ok(self.number)
    }

    /// Sends a command and waits for the answer; events that come before it are kept.
    ///
    /// # Errors
    /// When the browser refuses the command, does not answer within `limit`, or has ended.
    pub(super) fn ask(
        &mut self,
        session: Option<&str>,
        method: &str,
        parameters: &Value,
        limit: Duration,
    ) -> Result<Value> {
        let asked = self.tell(session, method, parameters)?;
        let until = Instant::now() + limit;
        loop {
            let message = self
                .receive(until)
                .with_context(|| format!("the answer to {method}"))?;
            match message {
                DevToolsMessage::Answer {
                    number,
                    result,
                    error,
                } if number == asked => {
                    return match error {
                        Some(error) => bail!("{method}: {error}"),
                        None => Ok(result),
                    };
                }
                // Another command's: nobody waits for it any more.
                DevToolsMessage::Answer { .. } => {}
                event @ DevToolsMessage::Event { .. } => self.early.push_back(event),
            }
        }
    }

    /// The next message, those that were kept first.
    ///
    /// # Errors
    /// When none comes until then, or the browser has ended.
    pub(super) fn next_message(&mut self, until: Instant) -> Result<DevToolsMessage> {
        match self.early.pop_front() {
            Some(message) => Ok(message),
            None => self.receive(until),
        }
    }

    fn receive(&mut self, until: Instant) -> Result<DevToolsMessage> {
        loop {
            wait::not_interrupted()?;
            match self.messages.recv_timeout(LOOK_EVERY) {
                Ok(message) => return Ok(DevToolsMessage::of(message)),
                Err(RecvTimeoutError::Timeout) if Instant::now() < until => {}
                Err(RecvTimeoutError::Timeout) => bail!("the browser does not answer"),
                Err(RecvTimeoutError::Disconnected) => bail!("the browser has ended"),
            }
        }
    }

    /// Ends the browser: it ends when its pipe does, and is killed if it does not.
    pub(super) fn end(&mut self) {
        let _ = self.tell(None, "Browser.close", &json!({}));
        self.commands = None;
        let ended = wait::until_removed(END_LIMIT, "the browser to end", || {
            Ok(self.child.try_wait()?.map(drop))
        });
        if ended.is_err() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_have_numbers_and_events_have_names() {
        let answer = DevToolsMessage::of(json!({ "id": 3, "result": { "a": 1 } }));
        let expected = DevToolsMessage::Answer {
            number: 3,
            result: json!({ "a": 1 }),
            error: None,
        };
        assert_eq!(answer, expected);
        let event = DevToolsMessage::of(json!({ "method": "Page.loadEventFired", "params": {} }));
        assert!(
            matches!(event, DevToolsMessage::Event { method, .. } if method == "Page.loadEventFired")
        );
        let refused = DevToolsMessage::of(json!({ "id": 4, "error": { "message": "no such" } }));
        assert!(
            matches!(refused, DevToolsMessage::Answer { error: Some(text), .. } if text == "no such")
        );
    }
}
