//! Set-ups from both hosts' view, by every dialect, and exchanges that must not lead to a key.

use super::super::sealing::SealingKey;
use super::*;
use crate::credentials::kerberos::EncryptionType;
use crate::credentials::kerberos::testing::{
    CLIENT_NAME, KerberosExchange, SERVICE_NAME, first_token, mic_token,
};
use crate::credentials::testing::{authenticate, challenge, hexadecimal, log_in};
use crate::smb::wire::header::SIGNATURE_AT;

const CHALLENGE: [u8; 8] = [1, 2, 3, 4, 5, 6, 7, 8];

fn setups(accounts: &str) -> PendingSetUps {
    PendingSetUps::new(&with_accounts(accounts))
}

fn with_accounts(accounts: &str) -> SmbSettings {
    SmbSettings {
        accounts: Some(Arc::new(DelegatedAccounts::parse(accounts).unwrap())),
        ..SmbSettings::STRICT
    }
}

/// With the keytab of a service, and no accounts.
fn with_keytab(exchange: &KerberosExchange) -> PendingSetUps {
    PendingSetUps::new(&SmbSettings {
        keytab: Some(Arc::new(exchange.keytab())),
        ..SmbSettings::STRICT
    })
}

fn message(header: Smb2Header, body: &[u8]) -> Vec<u8> {
    [&header.emit()[..], body].concat()
}

fn answer_header(of: u16, id: u64, session: u64, status: u32) -> Smb2Header {
    Smb2Header::request(of, id, session, 0).answer(status)
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

/// The same with a cipher alone.
fn negotiate_answer_with_cipher(cipher: EncryptionCipher) -> Vec<u8> {
    let mut answer = negotiate_answer(0x0311, Some(cipher.number()));
    // The second context becomes one of the kind that ciphers are chosen in, and signing goes by CMAC.
    let at = answer.len() - 12;
    answer[at] = 2;
    answer
}

fn set_up_request(id: u64, session: u64, token: &[u8]) -> Vec<u8> {
    let mut body = vec![0; 24];
    body[0] = 25;
    body[12] = 88;
    body[14..16].copy_from_slice(&(token.len() as u16).to_le_bytes());
    body.extend(token);
    message(
        Smb2Header::request(command::SESSION_SETUP, id, session, 0),
        &body,
    )
}

fn set_up_answer(id: u64, status: u32, flags: u8, token: &[u8]) -> Vec<u8> {
    let mut body = vec![9, 0, flags, 0, 72, 0];
    body.extend((token.len() as u16).to_le_bytes());
    body.extend(token);
    message(answer_header(command::SESSION_SETUP, id, 77, status), &body)
}

/// The messages of a session's set-up: requests and answers, the last one to be signed.
struct SetUpConversation {
    said: Vec<Vec<u8>>,
    session_key: Vec<u8>,
}

fn conversation(dialect: u16, algorithm: Option<u8>, exchanged: bool) -> SetUpConversation {
    let exchanged = exchanged.then_some([0xe5; 16]);
    let (token, session_key) = log_in("CORP", "Anna", "secret", CHALLENGE, exchanged);
    let more = status::MORE_PROCESSING_REQUIRED;
    let said = vec![
        message(Smb2Header::request(command::NEGOTIATE, 0, 0, 0), &[36; 36]),
        negotiate_answer(dialect, algorithm),
        set_up_request(1, 0, b"NTLMSSP\0\x01\0\0\0"),
        set_up_answer(1, more, 0, &challenge(CHALLENGE)),
        set_up_request(2, 77, &[b"wrapping", &token[..]].concat()),
        set_up_answer(2, status::SUCCESS, 0, b"done"),
    ];
    SetUpConversation {
        said,
        session_key: session_key.to_vec(),
    }
}

/// The same by Kerberos: one request and its answer.
fn by_kerberos(
    dialect: u16,
    algorithm: Option<u8>,
    exchange: &KerberosExchange,
) -> SetUpConversation {
    let said = vec![
        message(Smb2Header::request(command::NEGOTIATE, 0, 0, 0), &[36; 36]),
        negotiate_answer(dialect, algorithm),
        set_up_request(1, 0, &exchange.token()),
        set_up_answer(1, status::SUCCESS, 0, &exchange.answer()),
    ];
    SetUpConversation {
        said,
        session_key: exchange.agreed(),
    }
}

impl SetUpConversation {
    /// Signs the last answer as a server does.
    fn signed(mut self, dialect: u16, algorithm: SigningAlgorithm) -> Self {
        let key = SessionKey::new(&self.session_key).first();
        let key = signing_key(dialect, algorithm, &key, &self.preauth().0);
        key.sign(self.said.last_mut().unwrap(), []);
        self
    }

    /// The hash over all but the last answer.
    fn preauth(&self) -> PreauthHash {
        let (_, before) = self.said.split_last().unwrap();
        let all = before.iter();
        all.fold(PreauthHash::NOTHING, |hash, message| hash.and(message))
    }

    fn heard_by(&self, setups: &mut PendingSetUps) -> Option<SetUpOutcome> {
        let mut outcome = None;
        for message in &self.said {
            let header = Smb2Header::parse(message).unwrap();
            match header.has(flag::FROM_SERVER) {
                true => outcome = outcome.or(setups.answer(&header, message, message)),
                false => setups.request(&header, message),
            }
        }
        outcome
    }
}

#[test]
fn every_dialect_derives_the_servers_proved_key() {
    let cases = [
        (0x0202, None, SigningAlgorithm::HmacSha256),
        (0x0210, None, SigningAlgorithm::HmacSha256),
        (0x0300, None, SigningAlgorithm::AesCmac),
        (0x0302, None, SigningAlgorithm::AesCmac),
        (0x0311, None, SigningAlgorithm::AesCmac),
        (0x0311, Some(0), SigningAlgorithm::HmacSha256),
        (0x0311, Some(1), SigningAlgorithm::AesCmac),
    ];
    for (dialect, number, algorithm) in cases {
        for exchanged in [false, true] {
            let said = conversation(dialect, number, exchanged).signed(dialect, algorithm);
            let mut setups = setups("corp\\anna:password:secret");
            let Some(SetUpOutcome::Key { key, account, .. }) = said.heard_by(&mut setups) else {
                panic!("{dialect:#x} {algorithm:?}");
            };
            assert!(!key.differ());
            let key = key.at_client;
            assert_eq!(key.algorithm(), algorithm);
            assert_eq!(account, "CORP\\Anna");
            assert!(key.verify(said.said.last().unwrap()).is_some());
        }
    }
}

#[test]
fn interim_answer_does_not_change_the_set_up() {
    let said = conversation(0x0302, None, true).signed(0x0302, SigningAlgorithm::AesCmac);
    let mut setups = setups("corp\\anna:password:secret");
    let mut outcome = None;
    for message in &said.said {
        let header = Smb2Header::parse(message).unwrap();
        if header.has(flag::FROM_SERVER) {
            if header.command == command::SESSION_SETUP {
                let interim = Smb2Header {
                    flags: flag::FROM_SERVER | flag::ASYNC,
                    status: status::PENDING,
                    ..header
                };
                let bytes = self::message(interim, &[9, 0, 0, 0, 0, 0, 0, 0, 0]);
                assert_eq!(setups.answer(&interim, &bytes, &bytes), None);
            }
            outcome = setups.answer(&header, message, message);
        } else {
            setups.request(&header, message);
        }
    }
    assert!(
        matches!(outcome, Some(SetUpOutcome::Key { .. })),
        "{outcome:?}"
    );
}

#[test]
fn every_kerberos_encryption_derives_the_proved_key() {
    let dialects = [
        (0x0202, None, SigningAlgorithm::HmacSha256),
        (0x0302, None, SigningAlgorithm::AesCmac),
        (0x0311, Some(1), SigningAlgorithm::AesCmac),
    ];
    for (dialect, number, algorithm) in dialects {
        for encryption in EncryptionType::ALL {
            let mut exchange = KerberosExchange::with(encryption);
            for [of_client, of_server] in [[true, true], [true, false], [false, false]] {
                exchange.subkey = of_client.then_some(0x33);
                exchange.subkey_of_server = of_server.then_some(0x44);
                let said = by_kerberos(dialect, number, &exchange).signed(dialect, algorithm);
                let outcome = said.heard_by(&mut with_keytab(&exchange));
                let Some(SetUpOutcome::Key { key, account, .. }) = outcome else {
                    panic!("{dialect:#x} {encryption:?} {outcome:?}");
                };
                assert_eq!(account, CLIENT_NAME);
                assert!(key.at_client.verify(said.said.last().unwrap()).is_some());
            }
        }
    }
}

#[test]
fn kerberos_key_length_follows_the_cipher() {
    let exchange = KerberosExchange::with(EncryptionType::Aes256Sha1);
    for cipher in EncryptionCipher::ALL {
        let mut said = by_kerberos(0x0311, None, &exchange);
        said.said[1] = negotiate_answer_with_cipher(cipher);
        let said = said.signed(0x0311, SigningAlgorithm::AesCmac);
        let outcome = said.heard_by(&mut with_keytab(&exchange));
        let Some(SetUpOutcome::Key {
            sealing: Some(sealing),
            ..
        }) = outcome
        else {
            panic!("{cipher:?} {outcome:?}");
        };
        // [MS-SMB2] §3.1.4.2 and NIST SP 800-108 §5.1, by hand.
        let length = cipher.key_length();
        let mut mac = <hmac::Hmac<sha2::Sha256> as hmac::KeyInit>::new_from_slice(
            &exchange.agreed()[..length],
        )
        .unwrap();
        let bits = (8 * length as u32).to_be_bytes();
        let preauth = said.preauth().0;
        for part in [
            &[0, 0, 0, 1][..],
            b"SMBC2SCipherKey\0",
            &[0],
            &preauth,
            &bits,
        ] {
            hmac::Mac::update(&mut mac, part);
        }
        let block = hmac::Mac::finalize(mac).into_bytes();
        assert!(sealing.at_client.client == SealingKey::new(cipher, &block[..length]));
    }
}

#[test]
fn extra_mic_leg_keeps_the_ticket() {
    let exchange = KerberosExchange::with(EncryptionType::Aes128Sha2);
    let more = status::MORE_PROCESSING_REQUIRED;
    let mut said = by_kerberos(0x0311, None, &exchange);
    said.said[3] = set_up_answer(1, more, 0, &exchange.answer());
    said.said.push(set_up_request(2, 77, &mic_token()));
    said.said
        .push(set_up_answer(2, status::SUCCESS, 0, &mic_token()));
    let said = said.signed(0x0311, SigningAlgorithm::AesCmac);
    let outcome = said.heard_by(&mut with_keytab(&exchange));
    assert!(
        matches!(outcome, Some(SetUpOutcome::Key { .. })),
        "{outcome:?}"
    );
}

#[test]
fn fallback_from_kerberos_to_ntlm_is_followed() {
    let exchange = KerberosExchange::with(EncryptionType::Rc4);
    let mut said = conversation(0x0311, None, true);
    said.said[2] = set_up_request(1, 0, &exchange.token());
    let said = said.signed(0x0311, SigningAlgorithm::AesCmac);
    let outcome = said.heard_by(&mut setups("corp\\anna:password:secret"));
    let Some(SetUpOutcome::Key { account, .. }) = outcome else {
        panic!("{outcome:?}");
    };
    assert_eq!(account, "CORP\\Anna");
}

#[test]
fn missing_kerberos_key_is_named() {
    let exchange = KerberosExchange::with(EncryptionType::Aes256Sha1);
    let said = by_kerberos(0x0311, None, &exchange).signed(0x0311, SigningAlgorithm::AesCmac);
    let no_key = |setups: &mut PendingSetUps| match said.heard_by(setups) {
        Some(SetUpOutcome::NoKey(no_key)) => no_key,
        other => panic!("{other:?}"),
    };
    let found = no_key(&mut setups("corp\\anna:password:secret"));
    assert_eq!(found, MissingKeyReason::NoKeytab(SERVICE_NAME.to_owned()));
    assert_eq!(found.reason(), ReasonCode::NO_KEYTAB);
    assert_eq!(found.account(), Some(SERVICE_NAME));

    let renewed = KerberosExchange {
        version: 4,
        service_key: 0x99,
        ..exchange.clone()
    };
    let found = no_key(&mut with_keytab(&renewed));
    let ticket = format!("{SERVICE_NAME}, key version 3, aes256-cts-hmac-sha1-96");
    assert_eq!(found, MissingKeyReason::UnknownTicket(ticket));
    assert_eq!(found.reason(), ReasonCode::UNKNOWN_TICKET);

    // NTLM needs an account, which a keytab is not.
    let ntlm = conversation(0x0311, None, true).signed(0x0311, SigningAlgorithm::AesCmac);
    let wanted = SetUpOutcome::NoKey(MissingKeyReason::UnknownAccount("CORP\\Anna".to_owned()));
    assert_eq!(ntlm.heard_by(&mut with_keytab(&exchange)), Some(wanted));
}

#[test]
fn ticket_without_server_proof_is_rejected() {
    let exchange = KerberosExchange::with(EncryptionType::Aes256Sha1);
    let unproven = Some(SetUpOutcome::NoKey(MissingKeyReason::Unproven(
        CLIENT_NAME.to_owned(),
    )));
    let unsigned = by_kerberos(0x0311, None, &exchange);
    assert_eq!(unsigned.heard_by(&mut with_keytab(&exchange)), unproven);
    // The server has another key than its token says.
    let mut other = by_kerberos(0x0311, None, &exchange);
    other.session_key[0] ^= 1;
    let other = other.signed(0x0311, SigningAlgorithm::AesCmac);
    assert_eq!(other.heard_by(&mut with_keytab(&exchange)), unproven);
    for altered in 0..4 {
        let mut said =
            by_kerberos(0x0311, None, &exchange).signed(0x0311, SigningAlgorithm::AesCmac);
        let at = said.said[altered].len() - 1;
        said.said[altered][at] ^= 1;
        let outcome = said.heard_by(&mut with_keytab(&exchange));
        assert!(
            !matches!(outcome, Some(SetUpOutcome::Key { .. })),
            "{altered}"
        );
    }
}

#[test]
fn long_name_in_a_ticket_is_shortened() {
    let exchange = KerberosExchange::with(EncryptionType::Aes128Sha1);
    let mut request = exchange.ap_req();
    // No length changes: the realm's letters become line feeds.
    for at in 0..request.len() - 12 {
        if request[at..].starts_with(b"CORP.EXAMPLE") {
            request[at] = b'\n';
        }
    }
    let mut said = by_kerberos(0x0210, None, &exchange);
    said.said[2] = set_up_request(1, 0, &first_token(&request));
    let outcome = said.heard_by(&mut setups(""));
    let shown = "cifs/files.corp.example@?ORP.EXAMPLE".to_owned();
    assert_eq!(
        outcome,
        Some(SetUpOutcome::NoKey(MissingKeyReason::NoKeytab(shown)))
    );
    assert_eq!(
        cut(&"x".repeat(200), SHOWN_PRINCIPAL_MAX).chars().count(),
        121
    );
}

#[test]
fn wrong_secret_gives_a_reason_with_account() {
    let whose = || "CORP\\Anna".to_owned();
    let cases = [
        ("", MissingKeyReason::UnknownAccount(whose())),
        (
            "other\\anna:password:secret",
            MissingKeyReason::UnknownAccount(whose()),
        ),
        (
            "*\\anna:password:secret2",
            MissingKeyReason::WrongSecret(whose()),
        ),
    ];
    for (accounts, wanted) in cases {
        let said = conversation(0x0311, None, true).signed(0x0311, SigningAlgorithm::AesCmac);
        let outcome = said.heard_by(&mut setups(accounts));
        assert_eq!(outcome, Some(SetUpOutcome::NoKey(wanted)));
    }
    let said = conversation(0x0210, None, true).signed(0x0210, SigningAlgorithm::HmacSha256);
    let outcome = said.heard_by(&mut PendingSetUps::new(&SmbSettings::STRICT));
    assert_eq!(
        outcome,
        Some(SetUpOutcome::NoKey(MissingKeyReason::NoSecrets))
    );
}

#[test]
fn untrusted_name_is_made_printable() {
    let long = "\x1b]0;\u{202e}".to_owned() + &"x".repeat(200);
    let (token, _) = log_in("A\r\n", &long, "secret", CHALLENGE, None);
    let mut said = conversation(0x0210, None, true);
    said.said[4] = set_up_request(2, 77, &token);
    let shown = format!("A??\\?]0;?{}…", "x".repeat(SHOWN_MAX - 5));
    let wanted = SetUpOutcome::NoKey(MissingKeyReason::UnknownAccount(shown));
    assert_eq!(said.heard_by(&mut setups("")), Some(wanted));
}

#[test]
fn key_without_server_proof_is_rejected() {
    let unproven = Some(SetUpOutcome::NoKey(MissingKeyReason::Unproven(
        "CORP\\Anna".to_owned(),
    )));
    let accounts = "corp\\anna:password:secret";
    let unsigned = conversation(0x0311, None, true);
    assert_eq!(unsigned.heard_by(&mut setups(accounts)), unproven);
    // A message on the way was altered, or signed with another key.
    for altered in 0..5 {
        let mut said = conversation(0x0311, None, true).signed(0x0311, SigningAlgorithm::AesCmac);
        let at = said.said[altered].len() - 1;
        said.said[altered][at] ^= 1;
        let outcome = said.heard_by(&mut setups(accounts));
        assert!(
            !matches!(outcome, Some(SetUpOutcome::Key { .. })),
            "{altered}"
        );
    }
    let mut said = conversation(0x0311, None, true).signed(0x0311, SigningAlgorithm::AesCmac);
    said.said[5][SIGNATURE_AT] ^= 1;
    assert_eq!(said.heard_by(&mut setups(accounts)), unproven);
}

#[test]
fn gmac_needs_the_policy_of_its_name() {
    let said = conversation(0x0311, Some(2), true).signed(0x0311, SigningAlgorithm::AesGmac);
    let settings = with_accounts("corp\\anna:password:secret");
    let mut without = PendingSetUps::new(&settings);
    let wanted = SetUpOutcome::NoKey(MissingKeyReason::Gmac("CORP\\Anna".to_owned()));
    assert_eq!(said.heard_by(&mut without), Some(wanted));
    let mut with = PendingSetUps::new(&SmbSettings {
        may_resign_gmac: true,
        ..settings
    });
    assert!(matches!(
        said.heard_by(&mut with),
        Some(SetUpOutcome::Key { .. })
    ));
}

#[test]
fn guests_and_unknown_tokens_have_no_key() {
    let accounts = "*\\anna:password:secret";
    let mut guest = conversation(0x0210, None, true);
    *guest.said.last_mut().unwrap() = set_up_answer(2, status::SUCCESS, 1, b"");
    let keyless = Some(SetUpOutcome::NoKey(MissingKeyReason::Keyless));
    assert_eq!(guest.heard_by(&mut setups(accounts)), keyless);

    let old = authenticate("CORP", "anna", &[1; 24], None);
    for token in [&b"\x60\x82 a ticket"[..], &old] {
        let mut said = conversation(0x0210, None, true);
        said.said[4] = set_up_request(2, 77, token);
        let outcome = said.heard_by(&mut setups(accounts));
        assert_eq!(
            outcome,
            Some(SetUpOutcome::NoKey(MissingKeyReason::Mechanism))
        );
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
    setups.request(&Smb2Header::parse(&request).unwrap(), &request);
    assert_eq!(setups.connection.0[..], hash[..]);
}

#[test]
fn many_set_ups_at_a_time_are_bounded() {
    let mut setups = setups("");
    for id in 0..1_000 {
        let request = set_up_request(id, 0, b"");
        setups.request(&Smb2Header::parse(&request).unwrap(), &request);
        assert!(setups.asked.len() <= SET_UPS_MAX);
    }
}
