//! The events at the server, for tests that compare them with the clients' answers.

use super::Smb2Server;
use crate::smb::wire::FileId;
use crate::smb::wire::header::LENGTH;
use crate::smb::wire::transfer::WriteRequest;

/// Something that happened at the server, in order: its place in the history is its time.
#[derive(Clone, Debug)]
pub(crate) enum HistoryEvent {
    /// A file's contents are others now.
    Contents { object: u64, contents: Vec<u8> },
    /// The share holds these names now.
    Names {
        connection: usize,
        names: Vec<String>,
    },
    /// A WRITE was done, or refused.
    Wrote {
        connection: usize,
        file: FileId,
        offset: u64,
        data: Vec<u8>,
        is_done: bool,
    },
    /// A file's end was set by a request with this mark.
    Cut { connection: usize, mark: u16 },
    /// This connection was shown a file's contents, or changed them, or opened it to do so.
    Used { connection: usize, object: u64 },
    /// A CREATE succeeded.
    Opened { file: FileId, object: u64 },
    /// A CREATE or a rename was refused because of these opens.
    Conflicted {
        connection: usize,
        with: Vec<FileId>,
    },
    /// A CREATE waits for the oplocks of these opens.
    Waits {
        connection: usize,
        message_id: u64,
        on: Vec<FileId>,
    },
    /// An open's oplock is wanted back, because a connection opens the file by this name.
    Broke {
        file: FileId,
        holder: usize,
        by: usize,
        name: String,
    },
    /// A file is gone with the end of an open that has marked it for deletion.
    Deleted(FileId),
    /// The first names of a directory were taken for this open.
    Listed(FileId),
    /// A client received an answer.
    Told,
}

impl Smb2Server {
    /// Keeps a history from here on.
    pub(crate) fn keep_history(&mut self) {
        self.history = Some(Vec::new());
        self.names_changed(usize::MAX);
        for name in self.files.keys().cloned().collect::<Vec<_>>() {
            self.changed(&name);
        }
    }

    /// The number of events.
    pub(crate) fn happened(&self) -> usize {
        self.history.as_ref().map_or(0, Vec::len)
    }

    /// Records an answer to a client. Returns the number of events by then.
    pub(crate) fn tells(&mut self) -> usize {
        self.note(|| HistoryEvent::Told);
        self.happened()
    }

    pub(super) fn note(&mut self, happened: impl FnOnce() -> HistoryEvent) {
        if let Some(history) = &mut self.history {
            history.push(happened());
            self.times.push(self.now);
        }
    }

    /// A file's contents are others now.
    pub(super) fn changed(&mut self, name: &str) {
        let object = self.object(name);
        if self.history.is_some() {
            *self.versions.entry(object).or_default() += 1;
            let contents = self.files[name].clone();
            self.note(|| HistoryEvent::Contents { object, contents });
        }
    }

    pub(super) fn names_changed(&mut self, connection: usize) {
        if self.history.is_some() {
            let names = self.files.keys().cloned().collect();
            self.note(|| HistoryEvent::Names { connection, names });
        }
    }

    pub(super) fn note_write(&mut self, connection: usize, message: &[u8], is_done: bool) {
        if self.history.is_none() {
            return;
        }
        let request = WriteRequest::parse(&message[LENGTH..]).expect("a WRITE");
        let at = usize::from(request.data_at);
        let data = message[at..at + request.length as usize].to_vec();
        if let Some(object) = self.opens.get(&request.file).map(|open| open.object) {
            self.note(|| HistoryEvent::Used { connection, object });
        }
        self.note(|| HistoryEvent::Wrote {
            connection,
            file: request.file,
            offset: request.offset,
            data,
            is_done,
        });
    }
}
