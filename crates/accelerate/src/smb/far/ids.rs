//! The window of message ids towards the server ([MS-SMB2] §3.2.4.1.2, Associating the Message
//! with a MessageId; §3.2.4.1.5, Sending Multi-Credit Requests).
//!
//! The ids are the client's own as long as only the client's requests were sent. Afterwards this
//! half allocates them in sequence.

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct MessageIds {
    next: u64,
    /// Ids that were used; less than `next` when the client left some out.
    used: u64,
    /// Credits that the server gave and nothing has taken. Below zero when more was sent than
    /// allowed, which is the client's doing.
    credits: i64,
}

impl MessageIds {
    /// A new connection has one credit, for its NEGOTIATE.
    pub(crate) fn new() -> Self {
        Self {
            next: 0,
            used: 0,
            credits: 1,
        }
    }

    /// The client has used these ids itself.
    pub(crate) fn pass(&mut self, id: u64, charge: u16) {
        self.next = self.next.max(id.saturating_add(u64::from(charge)));
        self.used += u64::from(charge);
        self.credits -= i64::from(charge);
    }

    /// Returns true if all ids below the next are used, so that new ids can be allocated here.
    pub(crate) fn is_without_gap(&self) -> bool {
        self.used == self.next
    }

    /// Returns true if the server accepts a message of this charge now.
    pub(crate) fn can_take(&self, charge: u32) -> bool {
        self.credits >= i64::from(charge)
    }

    /// The id of the next message: those of all before it are lower.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// Gives out the id of the next message.
    pub(crate) fn take(&mut self, charge: u16) -> u64 {
        let id = self.next;
        self.next += u64::from(charge);
        self.used += u64::from(charge);
        self.credits -= i64::from(charge);
        id
    }

    /// The server gave credits.
    pub(crate) fn granted(&mut self, credits: u16) {
        self.credits += i64::from(credits);
    }
}
