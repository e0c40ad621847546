//! Tokens of MIT Kerberos, and tokens that must not be accepted.

use std::collections::HashMap;

use super::super::super::testing::hexadecimal;
use super::super::{Keytab, accept};
use super::*;

const TOKENS: &str = include_str!("../../../testdata/kerberos-message-tokens.txt");

/// The values of one section: a token, and the wrapped text behind it.
type TokenSection = HashMap<&'static str, (Vec<u8>, Vec<u8>)>;

fn sections() -> Vec<TokenSection> {
    let mut sections = Vec::new();
    for line in TOKENS.lines().filter(|line| !line.starts_with('#')) {
        if line.starts_with('[') {
            sections.push(TokenSection::new());
        } else if let Some((name, value)) = line.split_once(" =") {
            let mut values = value.split_whitespace();
            let mut next = || {
                let text = values.next().unwrap_or_default();
                match name {
                    "number" => Vec::new(),
                    _ => hexadecimal(text),
                }
            };
            let value = (next(), next());
            sections.last_mut().unwrap().insert(name, value);
        }
    }
    sections
}

fn secret(section: &TokenSection) -> MessageSecret {
    let keytab = Keytab::parse(&section["keytab"].0).unwrap();
    let accepted = accept(&section["ap_req"].0, Some(&keytab))
        .unwrap()
        .unwrap();
    let reply = accepted.reply_of_server(&section["ap_rep"].0).unwrap();
    accepted.message_secrets(Some(&reply)).swap_remove(0)
}

fn around(section: &TokenSection, what: &str) -> [Vec<u8>; 2] {
    match what {
        "all" => [section["head"].0.clone(), section["trailer"].0.clone()],
        _ => Default::default(),
    }
}

#[test]
fn tokens_of_mit_kerberos_are_opened() {
    let sections = sections();
    assert_eq!(sections.len(), 4);
    for section in &sections {
        let secret = secret(section);
        assert_eq!(secret.key().bytes(), section["key"].0);
        assert!(secret.is_of_acceptor());
        let plain = &section["text"].0;
        for (name, sender) in [
            ("client", TokenSender::Initiator),
            ("server", TokenSender::Acceptor),
        ] {
            let mut protector = secret.protector(sender);
            for what in ["text", "all"] {
                let [before, after] = around(section, what);
                let (token, sealed) = &section[&format!("{name}_wrap_{what}")[..]];
                assert_eq!(token.len(), protector.wrapping_length());
                let mut text = sealed.clone();
                assert!(protector.unwrap([&before, &after], &mut text, token));
                assert_eq!(text, *plain);
            }
            for what in ["text", "all"] {
                let [before, after] = around(section, what);
                let (token, _) = &section[&format!("{name}_mic_{what}")[..]];
                assert_eq!(token.len(), protector.signature_length());
                assert!(protector.verify(&[&before, plain, &after], token));
            }
        }
    }
}

#[test]
fn tokens_are_made_as_mit_kerberos_makes_them() {
    for section in &sections() {
        let secret = secret(section);
        let plain = &section["text"].0;
        let mut protector = secret.protector(TokenSender::Acceptor);
        for what in ["text", "all"] {
            let [before, after] = around(section, what);
            let around = [&before[..], &after[..]];
            let (wanted, sealed) = &section[&format!("server_wrap_{what}")[..]];
            let whole = protector.unwrapped(around, sealed, wanted).unwrap();
            let confounder = *whole.first_chunk().unwrap();
            let (mut text, mut token) = (plain.clone(), vec![0; wanted.len()]);
            assert!(protector.wrap_with(confounder, around, &mut text, &mut token));
            assert_eq!((&token, &text), (wanted, sealed));
        }
        for what in ["text", "all"] {
            let [before, after] = around(section, what);
            let (wanted, _) = &section[&format!("server_mic_{what}")[..]];
            let mut token = vec![0; wanted.len()];
            assert!(protector.sign(&[&before, plain, &after], &mut token));
            assert_eq!(token, *wanted);
        }
    }
}

/// A secret of each encryption, and both ends of the client's direction.
fn pairs() -> Vec<[TokenProtector; 2]> {
    let secrets = EncryptionType::ALL.into_iter().filter_map(|encryption| {
        let bytes = vec![7; encryption.key_length()];
        let key = KerberosKey::of(encryption.number(), &bytes)?;
        MessageSecret::new(key, true, [5, 9])
    });
    let pairs: Vec<[TokenProtector; 2]> = secrets
        .map(|secret| [0, 1].map(|_| secret.protector(TokenSender::Initiator)))
        .collect();
    assert_eq!(pairs.len(), 4, "all but RC4");
    pairs
}

#[test]
fn texts_of_every_length_are_opened_in_turn() {
    for [mut sender, mut receiver] in pairs() {
        for length in [0, 1, 15, 16, 17, 31, 32, 33, 5_000] {
            for filler in [0, 5, 16] {
                let plain: Vec<u8> = (0..length).map(|at: u32| at as u8).collect();
                let mut text = plain.clone();
                let mut token = vec![0; sender.wrapping_least() + filler];
                assert!(sender.wrap([b"head", b"tail"], &mut text, &mut token));
                assert!(length == 0 || text != plain);
                let again = (text.clone(), token.clone());
                assert!(receiver.unwrap([b"head", b"tail"], &mut text, &token));
                assert_eq!(text, plain);
                let (mut text, token) = again;
                assert!(
                    !receiver.unwrap([b"head", b"tail"], &mut text, &token),
                    "replayed"
                );
            }
        }
    }
}

#[test]
fn altered_and_missing_tokens_are_refused() {
    for [mut sender, mut receiver] in pairs() {
        let mut text = *b"a text of more than two blocks of the cipher";
        let mut token = vec![0; sender.wrapping_length()];
        assert!(sender.wrap([b"head", b"tail"], &mut text, &mut token));
        for at in 0..token.len() {
            let mut altered = token.clone();
            altered[at] ^= 1;
            let mut same = text;
            assert!(!receiver.unwrap([b"head", b"tail"], &mut same, &altered));
            assert_eq!(same, text);
        }
        for at in 0..text.len() {
            let mut altered = text;
            altered[at] ^= 1;
            assert!(!receiver.unwrap([b"head", b"tail"], &mut altered, &token));
        }
        assert!(!receiver.unwrap([b"Head", b"tail"], &mut text, &token));
        assert!(!receiver.unwrap([b"head", b"tai"], &mut text, &token));
        assert!(!receiver.unwrap([b"head", b"tail"], &mut text, &token[1..]));
        let mut signature = vec![0; sender.signature_length()];
        assert!(sender.sign(&[b"text"], &mut signature));
        assert!(!receiver.verify(&[b"text"], &signature), "out of turn");
        assert!(receiver.unwrap([b"head", b"tail"], &mut text, &token));
        assert!(!receiver.verify(&[b"texts"], &signature));
        assert!(receiver.verify(&[b"text"], &signature));
        assert!(!receiver.verify(&[b"text"], &signature), "replayed");
        receiver.skip(1);
        assert!(sender.sign(&[b"text"], &mut signature));
        assert!(sender.sign(&[b"text"], &mut signature));
        assert!(receiver.verify(&[b"text"], &signature));
    }
}

#[test]
fn tokens_of_another_direction_are_refused() {
    let key = KerberosKey::of(18, &[7; 32]).unwrap();
    let secret = MessageSecret::new(key, true, [5, 5]).unwrap();
    let mut sender = secret.protector(TokenSender::Initiator);
    let mut receiver = secret.protector(TokenSender::Acceptor);
    let mut text = *b"text";
    let mut token = vec![0; sender.wrapping_length()];
    assert!(sender.wrap([&[], &[]], &mut text, &mut token));
    token[2] |= 1;
    assert!(!receiver.unwrap([&[], &[]], &mut text, &token));
    let mut short = vec![0; sender.wrapping_least() - 1];
    assert!(!sender.wrap([&[], &[]], &mut text, &mut short));
}

#[test]
fn good_inputs_of_the_fuzz_target_are_valid() {
    for (name, bytes) in samples() {
        read_any(&bytes);
        let is_signed = name.starts_with("signed");
        let opens = |encryption| {
            let secret = sample_secret(encryption)?;
            let mut protector = match is_signed {
                true => secret.protector(TokenSender::Acceptor),
                false => secret.protector(TokenSender::Initiator),
            };
            let length = match is_signed {
                true => protector.signature_length(),
                false => protector.wrapping_length(),
            };
            let (token, text) = bytes.split_at(length);
            Some(match is_signed {
                true => protector.verify(&[text], token),
                false => protector.unwrap([&[], &[]], &mut text.to_vec(), token),
            })
        };
        let opened = EncryptionType::ALL.into_iter().filter_map(opens);
        assert_eq!(opened.filter(|is_valid| *is_valid).count(), 1, "{name}");
    }
}
