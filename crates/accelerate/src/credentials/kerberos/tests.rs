//! Exchanges with every encryption and in every wrapping, and tokens that must not lead to a key.

use super::testing::{CLIENT_NAME, KerberosExchange, SERVICE_NAME, USER_TO_USER, first_token, gss};
use super::*;

fn accepted(exchange: &KerberosExchange, token: &[u8]) -> AcceptedClient {
    match accept(token, Some(&exchange.keytab())) {
        Some(Ok(accepted)) => accepted,
        other => panic!("{other:?}"),
    }
}

fn refused(token: &[u8], keytab: Option<&Keytab>) -> ApReqError {
    accept(token, keytab).expect("it is Kerberos").unwrap_err()
}

#[test]
fn every_encryption_derives_the_common_key() {
    for encryption in EncryptionType::ALL {
        let mut exchange = KerberosExchange::with(encryption);
        for [of_client, of_server] in [[true, true], [true, false], [false, true], [false, false]] {
            exchange.subkey = of_client.then_some(0x33);
            exchange.subkey_of_server = of_server.then_some(0x44);
            let accepted = accepted(&exchange, &exchange.token());
            assert_eq!(accepted.client, CLIENT_NAME);
            // 2036-01-01.
            assert_eq!(accepted.ends, Some(2_082_758_400));
            let subkey = accepted.subkey_of_server(&exchange.answer());
            assert_eq!(subkey.is_some(), of_server);
            let candidates = accepted.candidates(subkey.as_ref());
            assert!(candidates[0] == SessionKey::new(&exchange.agreed()));
            let count = 1 + usize::from(of_client) + usize::from(of_server);
            assert_eq!(candidates.len(), count);
        }
    }
}

#[test]
fn a_ticket_is_found_in_every_wrapping() {
    let exchange = KerberosExchange::with(EncryptionType::Aes256Sha1);
    let old = gss(
        &[6, 9, 0x2a, 0x86, 0x48, 0x82, 0xf7, 0x12, 1, 2, 2],
        &[1, 0],
        &exchange.ap_req(),
    );
    let tokens = [
        exchange.token(),
        exchange.gss_token(),
        exchange.ap_req(),
        first_token(&exchange.ap_req()),
        first_token(&old),
    ];
    for token in tokens {
        assert_eq!(accepted(&exchange, &token).client, CLIENT_NAME);
    }
    let accepted = accepted(&exchange, &exchange.token());
    assert!(accepted.subkey_of_server(&exchange.ap_rep()).is_some());
}

#[test]
fn other_tokens_are_not_kerberos() {
    let exchange = KerberosExchange::with(EncryptionType::Aes128Sha1);
    let ntlm = b"NTLMSSP\0\x01\0\0\0";
    let foreign = gss(&[6, 3, 0x2a, 3, 4], &[1, 0], &exchange.ap_req());
    let tokens = [
        Vec::new(),
        ntlm.to_vec(),
        first_token(ntlm),
        foreign,
        testing::mic_token(),
        exchange.answer(),
    ];
    for token in tokens {
        assert!(accept(&token, Some(&exchange.keytab())).is_none());
    }
}

#[test]
fn undecryptable_ticket_names_service_and_key() {
    let exchange = KerberosExchange::with(EncryptionType::Aes256Sha1);
    let token = exchange.token();
    let other = KerberosExchange {
        service_key: 0x12,
        ..exchange.clone()
    };
    let described = format!("{SERVICE_NAME}, key version 3, aes256-cts-hmac-sha1-96");
    let wanted = ApReqError::NoKey(described);
    assert_eq!(refused(&token, Some(&other.keytab())), wanted);
    let short = KerberosExchange::with(EncryptionType::Aes128Sha1).keytab();
    assert_eq!(refused(&token, Some(&short)), wanted);
    let wanted = ApReqError::NoKeytab(SERVICE_NAME.to_owned());
    assert_eq!(refused(&token, None), wanted);
}

#[test]
fn foreign_or_user_to_user_ticket_is_refused() {
    let exchange = KerberosExchange::with(EncryptionType::Rc4);
    let keytab = exchange.keytab();
    // rc4-hmac-exp is one more.
    let mut token = exchange.token();
    let number = [0xa0, 3, 2, 1, 23];
    let at = token.windows(5).position(|window| window == number);
    token[at.unwrap() + 4] = 24;
    let wanted = ApReqError::Encryption(format!("{SERVICE_NAME}, encryption type 24"));
    assert_eq!(refused(&token, Some(&keytab)), wanted);

    let to_user = KerberosExchange {
        options: 0x60,
        ..exchange.clone()
    };
    let asks_for_ticket = first_token(&gss(USER_TO_USER, &[4, 0], &[0x30, 0]));
    let error = first_token(&gss(
        &[6, 9, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x12, 1, 2, 2],
        &[3, 0],
        &[0x7e, 0],
    ));
    for token in [to_user.token(), asks_for_ticket, error] {
        assert_eq!(refused(&token, Some(&keytab)), ApReqError::Mechanism);
    }
}

#[test]
fn an_authenticator_of_another_session_leads_to_nothing() {
    let exchange = KerberosExchange::with(EncryptionType::Aes128Sha2);
    let mut token = exchange.token();
    let last = token.len() - 1;
    token[last] ^= 1;
    let wanted = ApReqError::Broken(CLIENT_NAME.to_owned());
    assert_eq!(refused(&token, Some(&exchange.keytab())), wanted);

    let other = KerberosExchange {
        session_key: 0x23,
        ..exchange.clone()
    };
    let accepted = accepted(&exchange, &exchange.token());
    assert!(accepted.subkey_of_server(&other.answer()).is_none());
}

#[test]
fn truncated_or_altered_messages_are_refused() {
    let exchange = KerberosExchange::with(EncryptionType::Aes256Sha1);
    let (keytab, token) = (exchange.keytab(), exchange.token());
    for cut in 0..token.len() {
        let outcome = accept(&token[..cut], Some(&keytab));
        assert!(!matches!(outcome, Some(Ok(_))), "{cut}");
    }
    let whole = [
        token,
        exchange.answer(),
        exchange.enc_ticket_part(),
        exchange.authenticator(),
        exchange.enc_ap_rep_part(),
    ];
    for bytes in whole {
        for at in 0..bytes.len() {
            for flip in [1, 0x80, 0xff] {
                let mut altered = bytes.clone();
                altered[at] ^= flip;
                read_all(&altered);
                let _ = accept(&altered, Some(&keytab));
            }
        }
    }
}

#[test]
fn nothing_shows_a_key() {
    let exchange = KerberosExchange::with(EncryptionType::Aes256Sha1);
    let accepted = accepted(&exchange, &exchange.token());
    let shown = format!("{accepted:?} {:?}", accepted.candidates(None));
    let wanted = "Accepted(of anna@CORP.EXAMPLE, keys not shown) \
                  [SessionKey(not shown), SessionKey(not shown)]";
    assert_eq!(shown, wanted);
}
