//! Clients that prove who they are, once or again, and go from one session to another.

use super::Smb2World;
use crate::smb::testing::login::UserLogin;
use crate::smb::testing::messages;
use crate::smb::testing::server::SigningPolicy;
use crate::smb::wire::header::{flag, status};

impl Smb2World {
    /// Connects client `who`, as far as its session.
    pub(crate) fn sign_in(&mut self, who: usize) {
        self.ask(who, &messages::negotiate());
        match self.server.signing.clone() {
            None => {
                let answer = self.ask(who, &messages::session_setup());
                self.clients[who].session = answer.header.session;
            }
            Some(signing) => self.log_in(who, signing),
        }
    }

    /// Authenticates client `who` to the server.
    pub(super) fn log_in(&mut self, who: usize, signing: SigningPolicy) {
        if signing.login.has_two_steps() {
            let answer = self.ask(who, &messages::session_setup_with(&UserLogin::begins()));
            self.clients[who].session = answer.header.session;
        }
        let proof = signing.login.proves();
        self.clients[who].sealing = self.server.sealing;
        self.clients[who].session_key = Some((signing, self.server.dialect, proof.session_key));
        let answer = self.ask(who, &messages::session_setup_with(&proof.token));
        self.clients[who].session = answer.header.session;
        assert_eq!(answer.header.status, status::SUCCESS);
        assert!(answer.header.has(flag::SIGNED));
    }

    /// Sets up another session over the same connection, and continues with that one alone.
    pub(crate) fn set_up_another(&mut self, who: usize) {
        let signing = self.server.signing.clone().expect("users prove themselves");
        self.leave_session(who);
        self.log_in(who, signing);
        let answer = self.ask(who, &messages::tree_connect());
        self.clients[who].tree = answer.header.tree;
    }

    /// Lets client `who` continue as if it had no session.
    pub(crate) fn leave_session(&mut self, who: usize) {
        let client = &mut self.clients[who];
        (client.key, client.seal) = (None, None);
        (client.session, client.tree) = (0, 0);
    }

    /// Reauthenticates client `who` in its present session.
    pub(crate) fn prove_again(&mut self, who: usize) {
        let signing = self.server.signing.clone().expect("users prove themselves");
        let token = signing.login.proves().token;
        if signing.login.has_two_steps() {
            self.ask(who, &messages::session_setup_with(&UserLogin::begins()));
        }
        let answer = self.ask(who, &messages::session_setup_with(&token));
        assert_eq!(answer.header.status, status::SUCCESS);
    }
}
