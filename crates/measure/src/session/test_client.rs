//! Client of a test: a conversation, and the procedure that says which step is next.

use vocab::Time;

use super::client::{ClientConversation, ClientOutput, ClientSettings, ShellResult};
use super::procedure::ClientProcedure;
use super::stream::SentDatagrams;
use crate::wire::RunSample;

/// Client of a test, from the end of the greeting to `Bye`.
#[derive(Debug)]
pub struct TestClient<P> {
    conversation: ClientConversation,
    procedure: P,
    is_over: bool,
    /// Output of the client itself, ahead of the conversation's.
    progress: Option<(f64, String)>,
}

impl<P: ClientProcedure> TestClient<P> {
    /// A test that begins now.
    #[must_use]
    pub fn new(now: Time, settings: ClientSettings, procedure: P) -> Self {
        let mut client = Self {
            conversation: ClientConversation::new(now, settings),
            procedure,
            is_over: false,
            progress: None,
        };
        client.advance(now);
        client
    }

    /// Tells whether the test is over; the last outputs still wait.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// The procedure with its results.
    #[must_use]
    pub fn into_procedure(self) -> P {
        self.procedure
    }

    /// The procedure so far.
    #[must_use]
    pub fn procedure(&self) -> &P {
        &self.procedure
    }

    /// Takes in bytes of the control connection.
    pub fn handle_control(&mut self, now: Time, bytes: &[u8]) {
        self.conversation.handle_control(now, bytes);
        self.advance(now);
    }

    /// Takes note that the control connection has ended, and how.
    pub fn control_lost(&mut self, now: Time, how: impl Into<String>) {
        self.conversation.control_lost(how.into());
        self.advance(now);
    }

    /// Takes in a datagram that arrived at `arrived`.
    pub fn handle_datagram(&mut self, now: Time, arrived: Time, bytes: &[u8]) {
        self.conversation.handle_datagram(now, arrived, bytes);
        self.advance(now);
    }

    /// Takes note that this host refused to send a datagram of this length (EMSGSIZE).
    pub fn datagram_refused(&mut self, now: Time, length: usize) {
        self.conversation.datagram_refused(now, length);
        self.advance(now);
    }

    /// Hands in the end of a stream that this end sent.
    pub fn stream_sent(&mut self, now: Time, sent: ShellResult<SentDatagrams>) {
        self.conversation.stream_sent(now, sent);
        self.advance(now);
    }

    /// Hands in the number of datagrams that the socket dropped.
    pub fn drops_counted(&mut self, now: Time, datagrams: u64) {
        self.conversation.drops_counted(now, datagrams);
        self.advance(now);
    }

    /// Hands in that all connections are open, with the congestion control of those that send.
    pub fn connected(&mut self, now: Time, connected: ShellResult<String>) {
        self.conversation.connected(now, connected);
        self.advance(now);
    }

    /// Hands in the samples of the connections that sent, and this host's load in thousandths.
    pub fn transferred(&mut self, now: Time, samples: Vec<RunSample>, busy_permille: u16) {
        self.conversation.transferred(now, samples, busy_permille);
        self.advance(now);
    }

    /// Takes note that this host cannot go on, and why.
    pub fn host_failed(&mut self, now: Time, why: String) {
        self.conversation.host_failed(why);
        self.advance(now);
    }

    /// Ends the test on behalf of the user.
    pub fn interrupt(&mut self, now: Time) {
        self.conversation.interrupt();
        self.advance(now);
    }

    /// The next output.
    pub fn poll_output(&mut self) -> Option<ClientOutput> {
        if let Some(remark) = self.procedure.poll_remark() {
            return Some(ClientOutput::Remark(remark));
        }
        if let Some((done, text)) = self.progress.take() {
            return Some(ClientOutput::Progress(done, text));
        }
        self.conversation.poll_output()
    }

    /// Time of the next call of [`TestClient::handle_timeout`]; [`None`] after the end.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        match self.progress.is_some() {
            true => Some(Time::ZERO),
            false => self.conversation.poll_timeout(),
        }
    }

    /// Handles everything that is due.
    pub fn handle_timeout(&mut self, now: Time) {
        self.conversation.handle_timeout(now);
        self.advance(now);
    }

    fn advance(&mut self, now: Time) {
        while !self.is_over {
            if let Some(outcome) = self.conversation.poll_outcome() {
                self.procedure.handle(outcome);
            }
            if let Some(error) = self.conversation.failure() {
                self.procedure
                    .give_up(format!("the test ended early: {error}"));
                self.finish();
            } else if self.conversation.is_idle() {
                match self.procedure.next_step() {
                    Some(step) => {
                        self.progress = Some(self.procedure.progress());
                        self.conversation.begin(now, step);
                    }
                    None => self.finish(),
                }
            } else {
                return;
            }
        }
    }

    fn finish(&mut self) {
        self.is_over = true;
        self.conversation.finish();
    }
}
