//! The messages of RFC 4120 that a client and a service exchange, and the encrypted structures in
//! them; only the fields that lead to keys, names and versions.

use super::asn1::{SequenceFields, application, first, inside, texts};

/// The bit of ap-options for a ticket that is encrypted with a session key (RFC 4120 §5.5.1,
/// KRB_AP_REQ Definition): bit 1, counted from the most significant one.
const USE_SESSION_KEY: u8 = 0x40;

/// An EncryptionKey (RFC 4120 §5.2.9): its encryption type and its bytes.
pub(crate) type EncryptionKey<'a> = (i64, &'a [u8]);

fn encryption_key(bytes: &[u8]) -> Option<EncryptionKey<'_>> {
    let fields = SequenceFields::of(bytes)?;
    Some((fields.integer(0)?, fields.octets(1)?))
}

/// A key that may be left out.
fn subkey<'a>(fields: &SequenceFields<'a>, number: usize) -> Option<Option<EncryptionKey<'a>>> {
    match fields.get(number) {
        Some(bytes) => encryption_key(bytes).map(Some),
        None => Some(None),
    }
}

/// A sequence number that may be left out. Numbers of 2^31 and more may be written as negative ones
/// (RFC 4120 §5.5.1, seq-number).
fn sequence(fields: &SequenceFields<'_>, number: usize) -> Option<u32> {
    fields.integer(number).map(|sequence| sequence as u32)
}

/// Something encrypted (RFC 4120 §5.2.9, EncryptedData).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EncryptedData<'a> {
    pub(crate) encryption: i64,
    /// The version number of the principal's key that encrypted it.
    pub(crate) version: Option<u32>,
    pub(crate) bytes: &'a [u8],
}

impl<'a> EncryptedData<'a> {
    fn parse(bytes: &'a [u8]) -> Option<Self> {
        let fields = SequenceFields::of(bytes)?;
        Some(Self {
            encryption: fields.integer(0)?,
            // MIT Kerberos writes numbers of 2^31 and more as negative ones.
            version: fields.integer(1).map(|version| version as u32),
            bytes: fields.octets(2)?,
        })
    }
}

/// A name within a realm (RFC 4120 §5.2.2 and §6.2): `cifs/files.corp.example`.
fn principal(name: &[u8], realm: &str) -> Option<String> {
    let parts = texts(SequenceFields::of(name)?.get(1)?)?;
    Some(format!("{}@{realm}", parts.join("/")))
}

/// The ticket that proves a client's identity to a service (RFC 4120 §5.3, Tickets).
#[derive(Clone, Debug)]
pub(crate) struct KerberosTicket<'a> {
    service: String,
    pub(crate) part: EncryptedData<'a>,
}

impl<'a> KerberosTicket<'a> {
    fn parse(bytes: &'a [u8]) -> Option<Self> {
        let fields = SequenceFields::of(inside(bytes, application(1))?)?;
        Some(Self {
            service: principal(fields.get(2)?, &fields.text(1)?)?,
            part: EncryptedData::parse(fields.get(3)?)?,
        })
    }

    /// The service that it is for, by its own statement: `cifs/files.corp.example@CORP.EXAMPLE`.
    pub(crate) fn service(&self) -> String {
        self.service.clone()
    }
}

/// A client's request (RFC 4120 §5.5.1).
#[derive(Clone, Debug)]
pub(crate) struct ApReq<'a> {
    pub(crate) uses_session_key: bool,
    pub(crate) ticket: KerberosTicket<'a>,
    pub(crate) authenticator: EncryptedData<'a>,
}

impl<'a> ApReq<'a> {
    pub(crate) fn parse(bytes: &'a [u8]) -> Option<Self> {
        let fields = SequenceFields::of(inside(bytes, application(14))?)?;
        let (_, options, _) = first(fields.get(2)?)?;
        Some(Self {
            // Before the bits stands how many of the last byte do not count.
            uses_session_key: options.get(1)? & USE_SESSION_KEY != 0,
            ticket: KerberosTicket::parse(fields.get(3)?)?,
            authenticator: EncryptedData::parse(fields.get(4)?)?,
        })
    }
}

/// The server's answer (RFC 4120 §5.5.2).
#[derive(Clone, Copy, Debug)]
pub(crate) struct ApRep<'a> {
    pub(crate) part: EncryptedData<'a>,
}

impl<'a> ApRep<'a> {
    pub(crate) fn parse(bytes: &'a [u8]) -> Option<Self> {
        let fields = SequenceFields::of(inside(bytes, application(15))?)?;
        Some(Self {
            part: EncryptedData::parse(fields.get(2)?)?,
        })
    }
}

/// The part of a ticket that only the service can decrypt (RFC 4120 §5.3).
pub(crate) struct EncTicketPart<'a> {
    pub(crate) key: EncryptionKey<'a>,
    /// The time at which it ends, in seconds since 1970.
    pub(crate) ends: Option<u64>,
    client: String,
}

impl<'a> EncTicketPart<'a> {
    pub(crate) fn parse(bytes: &'a [u8]) -> Option<Self> {
        let fields = SequenceFields::of(inside(bytes, application(3))?)?;
        Some(Self {
            key: encryption_key(fields.get(1)?)?,
            ends: fields.time(7),
            client: principal(fields.get(3)?, &fields.text(2)?)?,
        })
    }

    /// The client that it speaks for: `anna@CORP.EXAMPLE`.
    pub(crate) fn client(&self) -> String {
        self.client.clone()
    }
}

/// The proof that the client has the session key (RFC 4120 §5.5.1).
pub(crate) struct KerberosAuthenticator<'a> {
    pub(crate) subkey: Option<EncryptionKey<'a>>,
    /// The number of the client's first message.
    pub(crate) sequence: Option<u32>,
}

impl<'a> KerberosAuthenticator<'a> {
    pub(crate) fn parse(bytes: &'a [u8]) -> Option<Self> {
        let fields = SequenceFields::of(inside(bytes, application(2))?)?;
        Some(Self {
            subkey: subkey(&fields, 6)?,
            sequence: sequence(&fields, 7),
        })
    }
}

/// The same proof of the server (RFC 4120 §5.5.2).
pub(crate) struct EncApRepPart<'a> {
    pub(crate) subkey: Option<EncryptionKey<'a>>,
    /// The number of the server's first message.
    pub(crate) sequence: Option<u32>,
}

impl<'a> EncApRepPart<'a> {
    pub(crate) fn parse(bytes: &'a [u8]) -> Option<Self> {
        let fields = SequenceFields::of(inside(bytes, application(27))?)?;
        Some(Self {
            subkey: subkey(&fields, 2)?,
            sequence: sequence(&fields, 3),
        })
    }
}
