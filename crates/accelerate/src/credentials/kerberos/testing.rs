//! For tests: a realm with a client and a service, and their messages.

// Seeds for fuzzing use some of it, tests all.
#![cfg_attr(not(test), allow(dead_code))]

use super::keytab::{Keytab, testing as keytab};
use super::{EncryptionType, KerberosKey, usage};

/// The realm, ...
pub(crate) const REALM: &str = "CORP.EXAMPLE";
/// ... and the parts of the client's and the service's name in it.
pub(crate) const CLIENT: &str = "anna";
pub(crate) const SERVICE: [&str; 2] = ["cifs", "files.corp.example"];
/// The principals of the client and of the service.
pub(crate) const CLIENT_NAME: &str = "anna@CORP.EXAMPLE";
pub(crate) const SERVICE_NAME: &str = "cifs/files.corp.example@CORP.EXAMPLE";

/// 1.2.840.113554.1.2.2 and 1.3.6.1.5.5.2, with their tags and lengths.
const KERBEROS: &[u8] = &[6, 9, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x12, 1, 2, 2];
const SPNEGO: &[u8] = &[6, 6, 0x2b, 6, 1, 5, 5, 2];
/// 1.2.840.113554.1.2.2.3
pub(crate) const USER_TO_USER: &[u8] = &[6, 10, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x12, 1, 2, 2, 3];

const SEQUENCE: u8 = 0x30;

/// An element of DER with this identifier octet.
pub(crate) fn element(identifier: u8, parts: &[&[u8]]) -> Vec<u8> {
    let contents = parts.concat();
    let mut bytes = vec![identifier];
    match contents.len() {
        length @ ..0x80 => bytes.push(length as u8),
        length @ 0x80..0x100 => bytes.extend([0x81, length as u8]),
        length => {
            bytes.push(0x82);
            bytes.extend((length as u16).to_be_bytes());
        }
    }
    bytes.extend(contents);
    bytes
}

fn application(number: u8, parts: &[&[u8]]) -> Vec<u8> {
    element(0x60 | number, parts)
}

fn field(number: u8, value: &[u8]) -> Vec<u8> {
    element(0xa0 | number, &[value])
}

fn sequence(fields: &[&[u8]]) -> Vec<u8> {
    element(SEQUENCE, fields)
}

fn integer(value: i64) -> Vec<u8> {
    let bytes = value.to_be_bytes();
    // As short as it can be without changing its sign.
    let spare = (0..7).take_while(|at| {
        let (byte, next) = (bytes[*at], bytes[at + 1] & 0x80);
        byte == 0 && next == 0 || byte == 0xff && next != 0
    });
    element(2, &[&bytes[spare.count()..]])
}

fn octets(bytes: &[u8]) -> Vec<u8> {
    element(4, &[bytes])
}

fn text(text: &str) -> Vec<u8> {
    element(0x1b, &[text.as_bytes()])
}

fn principal(parts: &[&str]) -> Vec<u8> {
    let parts: Vec<Vec<u8>> = parts.iter().map(|part| text(part)).collect();
    sequence(&[
        &field(0, &integer(1)),
        &field(1, &element(SEQUENCE, &[&parts.concat()])),
    ])
}

fn encryption_key((encryption, bytes): (i64, &[u8])) -> Vec<u8> {
    sequence(&[&field(0, &integer(encryption)), &field(1, &octets(bytes))])
}

fn encrypted(encryption: i64, version: Option<u32>, bytes: &[u8]) -> Vec<u8> {
    let version = version.map_or(Vec::new(), |version| field(1, &integer(i64::from(version))));
    sequence(&[
        &field(0, &integer(encryption)),
        &version,
        &field(2, &octets(bytes)),
    ])
}

/// The keys of a client and a service, and their choices.
#[derive(Clone, Debug)]
pub(crate) struct KerberosExchange {
    pub(crate) encryption: EncryptionType,
    /// The version of the service's key that encrypts the ticket.
    pub(crate) version: u32,
    /// The bytes that fill that key, the session key, and the two optional subkeys.
    pub(crate) service_key: u8,
    pub(crate) session_key: u8,
    pub(crate) subkey: Option<u8>,
    pub(crate) subkey_of_server: Option<u8>,
    /// The first octet of ap-options.
    pub(crate) options: u8,
}

impl KerberosExchange {
    /// With both subkeys and mutual authentication.
    pub(crate) fn with(encryption: EncryptionType) -> Self {
        Self {
            encryption,
            version: 3,
            service_key: 0x11,
            session_key: 0x22,
            subkey: Some(0x33),
            subkey_of_server: Some(0x44),
            options: 0x20,
        }
    }

    fn bytes(&self, byte: u8) -> Vec<u8> {
        // No two bytes are alike, so that the first sixteen are not the last.
        (0..self.encryption.key_length())
            .map(|at| byte ^ at as u8)
            .collect()
    }

    fn key(&self, byte: u8) -> KerberosKey {
        KerberosKey::of(self.encryption.number(), &self.bytes(byte)).expect("the length is right")
    }

    /// The key that both have in the end.
    pub(crate) fn agreed(&self) -> Vec<u8> {
        let subkey = self.subkey_of_server.or(self.subkey);
        self.bytes(subkey.unwrap_or(self.session_key))
    }

    /// The keytab of the service, as a file and read.
    pub(crate) fn keytab_file(&self) -> Vec<u8> {
        let key = self.bytes(self.service_key);
        let number = self.encryption.number();
        let entry = keytab::entry(&SERVICE, REALM, self.version, number, &key);
        keytab::keytab(&[entry])
    }

    pub(crate) fn keytab(&self) -> Keytab {
        Keytab::parse(&self.keytab_file()).expect("it is one")
    }

    /// An EncryptionKey of this exchange.
    fn chosen(&self, byte: u8) -> Vec<u8> {
        encryption_key((self.encryption.number(), &self.bytes(byte)))
    }

    /// The encrypted part of the ticket.
    pub(crate) fn enc_ticket_part(&self) -> Vec<u8> {
        let transited = sequence(&[&field(0, &integer(0)), &field(1, &octets(b""))]);
        let fields: [&[u8]; 7] = [
            &field(0, &element(3, &[&[0, 0x40, 0xa1, 0, 0]])),
            &field(1, &self.chosen(self.session_key)),
            &field(2, &text(REALM)),
            &field(3, &principal(&[CLIENT])),
            &field(4, &transited),
            &field(5, &element(0x18, &[b"20260101000000Z"])),
            &field(7, &element(0x18, &[b"20360101000000Z"])),
        ];
        application(3, &[&sequence(&fields)])
    }

    /// The client's proof that it has the session key.
    pub(crate) fn authenticator(&self) -> Vec<u8> {
        let subkey = self
            .subkey
            .map_or(Vec::new(), |byte| field(6, &self.chosen(byte)));
        let fields: [&[u8]; 6] = [
            &field(0, &integer(5)),
            &field(1, &text(REALM)),
            &field(2, &principal(&[CLIENT])),
            &field(4, &integer(123_456)),
            &field(5, &element(0x18, &[b"20260101000000Z"])),
            &subkey,
        ];
        application(2, &[&sequence(&fields)])
    }

    /// The server's proof that it has the session key.
    pub(crate) fn enc_ap_rep_part(&self) -> Vec<u8> {
        let subkey = self.subkey_of_server;
        let subkey = subkey.map_or(Vec::new(), |byte| field(2, &self.chosen(byte)));
        let fields: [&[u8]; 4] = [
            &field(0, &element(0x18, &[b"20260101000000Z"])),
            &field(1, &integer(123_456)),
            &subkey,
            &field(3, &integer(0x7fff_ffff)),
        ];
        application(27, &[&sequence(&fields)])
    }

    /// The AP-REQ, bare.
    pub(crate) fn ap_req(&self) -> Vec<u8> {
        let number = self.encryption.number();
        let ticket = self.key(self.service_key);
        let ticket = ticket.seal(usage::TICKET, &self.enc_ticket_part());
        let ticket = sequence(&[
            &field(0, &integer(5)),
            &field(1, &text(REALM)),
            &field(2, &principal(&SERVICE)),
            &field(3, &encrypted(number, Some(self.version), &ticket)),
        ]);
        let session = self.key(self.session_key);
        let authenticator = session.seal(usage::AUTHENTICATOR, &self.authenticator());
        let fields: [&[u8]; 5] = [
            &field(0, &integer(5)),
            &field(1, &integer(14)),
            &field(2, &element(3, &[&[0, self.options, 0, 0, 0]])),
            &field(3, &application(1, &[&ticket])),
            &field(4, &encrypted(number, None, &authenticator)),
        ];
        application(14, &[&sequence(&fields)])
    }

    /// The AP-REP, bare.
    pub(crate) fn ap_rep(&self) -> Vec<u8> {
        let session = self.key(self.session_key);
        let part = session.seal(usage::AP_REP, &self.enc_ap_rep_part());
        let fields: [&[u8]; 3] = [
            &field(0, &integer(5)),
            &field(1, &integer(15)),
            &field(2, &encrypted(self.encryption.number(), None, &part)),
        ];
        application(15, &[&sequence(&fields)])
    }

    /// The client's token in the wrapping of the GSS-API alone.
    pub(crate) fn gss_token(&self) -> Vec<u8> {
        gss(KERBEROS, &[1, 0], &self.ap_req())
    }

    /// The client's first token as it is sent.
    pub(crate) fn token(&self) -> Vec<u8> {
        first_token(&self.gss_token())
    }

    /// The server's token with its AP-REP.
    pub(crate) fn answer(&self) -> Vec<u8> {
        let token = gss(KERBEROS, &[2, 0], &self.ap_rep());
        let fields: [&[u8]; 3] = [
            &field(0, &element(0x0a, &[&[0]])),
            &field(1, KERBEROS),
            &field(2, &octets(&token)),
        ];
        field(1, &sequence(&fields))
    }
}

/// A token of a mechanism, named as DER has it.
pub(crate) fn gss(mechanism: &[u8], kind: &[u8], message: &[u8]) -> Vec<u8> {
    application(0, &[mechanism, kind, message])
}

/// A client's first token of SPNEGO, with this one of its first mechanism inside.
pub(crate) fn first_token(token: &[u8]) -> Vec<u8> {
    let mechanisms = sequence(&[KERBEROS, &[6, 3, 0x2a, 3, 4]]);
    let fields: [&[u8]; 2] = [&field(0, &mechanisms), &field(2, &octets(token))];
    gss(SPNEGO, &field(0, &sequence(&fields)), &[])
}

/// A further token of the client's, with the MIC over its list of mechanisms alone.
pub(crate) fn mic_token() -> Vec<u8> {
    field(1, &sequence(&[&field(3, &octets(&[4, 4, 0, 0xff]))]))
}
