//! Set-ups from both hosts' view, by every dialect, and what must not lead to a key.

use super::super::testing::{authenticate, challenge, hexadecimal, log_in};
use super::*;
use crate::smb::wire::header::SIGNATURE_AT;

const CHALLENGE: [u8; 8] = [1, 2, 3, 4, 5, 6, 7, 8];

fn setups(accounts: &str) -> SetUps {
    SetUps::new(Some(Arc::new(Accounts::parse(accounts).unwrap())), false)
}

fn message(header: Header, body: &[u8]) -> Vec<u8> {
    [&header.emit()[..], body].concat()
}

fn answer_header(of: u16, id: u64, session: u64, status: u32) -> Header {
    Header::request(of, id, session, 0).answer(status)
}

/// An answer to NEGOTIATE, with a context of another kind before the one for signing.
fn negotiate_answer(dialect: u16, algorithm: Option<u8>) -> Vec<u8> {
    let mut body = vec![0; 64];
    body[0] = 65;
    body[4..6].copy_from_slice(&dialect.to_le_bytes());
    if let Some(algorithm) = algorithm {
        body[6] = 2;
        body[60] = 128;
        body.extend([1, 0, 6, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0]);
        body.extend([8, 0, 4, 0, 0, 0, 0, 0, 1, 0, algorithm, 0]);
    }
    message(answer_header(command::NEGOTIATE, 0, 0, 0), &body)
}

fn set_up_request(id: u64, session: u64, token: &[u8]) -> Vec<u8> {
    let mut body = vec![0; 24];
    body[0] = 25;
    body[12] = 88;
    body[14..16].copy_from_slice(&(token.len() as u16).to_le_bytes());
    body.extend(token);
    message(
        Header::request(command::SESSION_SETUP, id, session, 0),
        &body,
    )
}

fn set_up_answer(id: u64, status: u32, flags: u8, token: &[u8]) -> Vec<u8> {
    let mut body = vec![9, 0, flags, 0, 72, 0];
    body.extend((token.len() as u16).to_le_bytes());
    body.extend(token);
    message(answer_header(command::SESSION_SETUP, id, 77, status), &body)
}

/// What passes while a session is set up: requests and answers, the last one to be signed.
struct Conversation {
    said: Vec<Vec<u8>>,
    session_key: [u8; 16],
}

fn conversation(dialect: u16, algorithm: Option<u8>, exchanged: bool) -> Conversation {
    let exchanged = exchanged.then_some([0xe5; 16]);
    let (token, session_key) = log_in("CORP", "Anna", "secret", CHALLENGE, exchanged);
    let more = status::MORE_PROCESSING_REQUIRED;
    let said = vec![
        message(Header::request(command::NEGOTIATE, 0, 0, 0), &[36; 36]),
        negotiate_answer(dialect, algorithm),
        set_up_request(1, 0, b"NTLMSSP\0\x01\0\0\0"),
        set_up_answer(1, more, 0, &challenge(CHALLENGE)),
        set_up_request(2, 77, &[b"wrapping", &token[..]].concat()),
        set_up_answer(2, status::SUCCESS, 0, b"done"),
    ];
    Conversation { said, session_key }
}

impl Conversation {
    /// Signs the last answer as a server does.
    fn signed(mut self, dialect: u16, algorithm: Algorithm) -> Self {
        let preauth = self.said[..5]
            .iter()
            .fold(Preauth::NOTHING, |hash, message| hash.and(message));
        let key = signing_key(dialect, algorithm, &self.session_key, &preauth.0);
        key.sign(self.said.last_mut().unwrap(), []);
        self
    }

    fn heard_by(&self, setups: &mut SetUps) -> Option<Outcome> {
        let mut outcome = None;
        for message in &self.said {
            let header = Header::parse(message).unwrap();
            match header.has(flag::FROM_SERVER) {
                true => outcome = outcome.or(setups.answer(&header, message)),
                false => setups.request(&header, message),
            }
        }
        outcome
    }
}

#[test]
fn every_dialect_and_algorithm_comes_to_the_key_that_the_server_proves() {
    let cases = [
        (0x0202, None, Algorithm::HmacSha256),
        (0x0210, None, Algorithm::HmacSha256),
        (0x0300, None, Algorithm::AesCmac),
        (0x0302, None, Algorithm::AesCmac),
        (0x0311, None, Algorithm::AesCmac),
        (0x0311, Some(0), Algorithm::HmacSha256),
        (0x0311, Some(1), Algorithm::AesCmac),
    ];
    for (dialect, number, algorithm) in cases {
        for exchanged in [false, true] {
            let said = conversation(dialect, number, exchanged).signed(dialect, algorithm);
            let mut setups = setups("corp\\anna:password:secret");
            let Some(Outcome::Key { key, account, .. }) = said.heard_by(&mut setups) else {
                panic!("{dialect:#x} {algorithm:?}");
            };
            assert_eq!(key.algorithm(), algorithm);
            assert_eq!(account, "CORP\\Anna");
            assert!(key.verify(said.said.last().unwrap()).is_some());
        }
    }
}

#[test]
fn without_the_right_secret_there_is_no_key_and_the_reason_names_the_account() {
    let whose = || "CORP\\Anna".to_owned();
    let cases = [
        ("", NoKey::UnknownAccount(whose())),
        (
            "other\\anna:password:secret",
            NoKey::UnknownAccount(whose()),
        ),
        ("*\\anna:password:secret2", NoKey::WrongSecret(whose())),
    ];
    for (accounts, wanted) in cases {
        let said = conversation(0x0311, None, true).signed(0x0311, Algorithm::AesCmac);
        let outcome = said.heard_by(&mut setups(accounts));
        assert_eq!(outcome, Some(Outcome::NoKey(wanted)));
    }
    let said = conversation(0x0210, None, true).signed(0x0210, Algorithm::HmacSha256);
    let outcome = said.heard_by(&mut SetUps::new(None, false));
    assert_eq!(outcome, Some(Outcome::NoKey(NoKey::NoAccounts)));
}

#[test]
fn a_name_that_anybody_may_send_is_fit_to_be_shown() {
    let long = "\x1b]0;\u{202e}".to_owned() + &"x".repeat(200);
    let (token, _) = log_in("A\r\n", &long, "secret", CHALLENGE, None);
    let mut said = conversation(0x0210, None, true);
    said.said[4] = set_up_request(2, 77, &token);
    let shown = format!("A??\\?]0;?{}…", "x".repeat(SHOWN_MAX - 5));
    let wanted = Outcome::NoKey(NoKey::UnknownAccount(shown));
    assert_eq!(said.heard_by(&mut setups("")), Some(wanted));
}

#[test]
fn a_key_that_the_server_does_not_prove_is_none() {
    let unproven = Some(Outcome::NoKey(NoKey::Unproven("CORP\\Anna".to_owned())));
    let accounts = "corp\\anna:password:secret";
    let unsigned = conversation(0x0311, None, true);
    assert_eq!(unsigned.heard_by(&mut setups(accounts)), unproven);
    // A message on the way was altered, or signed with another key.
    for altered in 0..5 {
        let mut said = conversation(0x0311, None, true).signed(0x0311, Algorithm::AesCmac);
        let at = said.said[altered].len() - 1;
        said.said[altered][at] ^= 1;
        let outcome = said.heard_by(&mut setups(accounts));
        assert!(!matches!(outcome, Some(Outcome::Key { .. })), "{altered}");
    }
    let mut said = conversation(0x0311, None, true).signed(0x0311, Algorithm::AesCmac);
    said.said[5][SIGNATURE_AT] ^= 1;
    assert_eq!(said.heard_by(&mut setups(accounts)), unproven);
}

#[test]
fn gmac_needs_the_policy_of_its_name() {
    let said = conversation(0x0311, Some(2), true).signed(0x0311, Algorithm::AesGmac);
    let accounts = Accounts::parse("corp\\anna:password:secret").unwrap();
    let mut without = SetUps::new(Some(Arc::new(accounts.clone())), false);
    let wanted = Outcome::NoKey(NoKey::Gmac("CORP\\Anna".to_owned()));
    assert_eq!(said.heard_by(&mut without), Some(wanted));
    let mut with = SetUps::new(Some(Arc::new(accounts)), true);
    assert!(matches!(
        said.heard_by(&mut with),
        Some(Outcome::Key { .. })
    ));
}

#[test]
fn guests_kerberos_and_old_ntlm_have_no_key() {
    let accounts = "*\\anna:password:secret";
    let mut guest = conversation(0x0210, None, true);
    *guest.said.last_mut().unwrap() = set_up_answer(2, status::SUCCESS, 1, b"");
    let keyless = Some(Outcome::NoKey(NoKey::Keyless));
    assert_eq!(guest.heard_by(&mut setups(accounts)), keyless);

    let old = authenticate("CORP", "anna", &[1; 24], None);
    for token in [&b"\x60\x82 a ticket"[..], &old] {
        let mut said = conversation(0x0210, None, true);
        said.said[4] = set_up_request(2, 77, token);
        let outcome = said.heard_by(&mut setups(accounts));
        assert_eq!(outcome, Some(Outcome::NoKey(NoKey::Mechanism)));
    }
}

#[test]
fn the_hash_of_a_published_negotiation_comes_out() {
    // Of the example that `derivation` cites, its second channel.
    let request = hexadecimal(
        "FE534D4240000100000000000000800000000000000000000100000000000000FFFE000000000000\
         00000000000000000000000000000000000000000000000024000500010000003F000000ECD86F32\
         6276024F9F7752B89BB33F3A70000000020000000202100200030203110300000100260000000000\
         0100200001003E38B8B81A9AFB172278056F4898FD09A1B9976A49B2D771161FCD4D40DF7D7D0000\
         0200060000000000020002000100",
    );
    let hash = hexadecimal(
        "F035C2B2BAB116E0DCF6A74E26670604D1BF6DDA065913AF7C30E93C1F025AC3CE2DD44D4DE26524\
         A785E5D8E06AF0BE1C74296FEF05B045C3793A12B32C49DF",
    );
    let mut setups = setups("");
    setups.request(&Header::parse(&request).unwrap(), &request);
    assert_eq!(setups.connection.0[..], hash[..]);
}

#[test]
fn many_set_ups_at_a_time_are_bounded() {
    let mut setups = setups("");
    for id in 0..1_000 {
        let request = set_up_request(id, 0, b"");
        setups.request(&Header::parse(&request).unwrap(), &request);
        assert!(setups.asked.len() <= SET_UPS_MAX);
    }
}
