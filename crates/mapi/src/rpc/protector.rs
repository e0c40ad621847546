//! The protection of PDUs by the mechanism of their session.

use super::kerberos::{KerberosProtector, KerberosSecret};
use super::ntlm::{NtlmProtector, NtlmSecret, SIGNATURE};
use super::security::OpenedPdu;
use super::splitter::RawPdu;

/// The sender of the PDUs of one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageOrigin {
    /// The client.
    Client,
    /// The server.
    Server,
}

/// The secret of a session and what else its keys depend on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionSecret {
    /// The secret of NTLM.
    Ntlm(NtlmSecret),
    /// The secret of Kerberos.
    Kerberos(KerberosSecret),
}

impl SessionSecret {
    /// The protection of one direction, at its begin.
    #[must_use]
    pub fn protector(&self, origin: MessageOrigin) -> PduProtector {
        match self {
            Self::Ntlm(secret) => PduProtector::Ntlm(NtlmProtector::new(
                &secret.key,
                secret.flags,
                origin,
                secret.first_sequence,
            )),
            Self::Kerberos(secret) => {
                PduProtector::Kerberos(KerberosProtector::new(secret, origin))
            }
        }
    }
}

/// Signs and seals the PDUs of one direction, or verifies and opens them.
#[derive(Debug)]
pub enum PduProtector {
    /// The protection of NTLM.
    Ntlm(NtlmProtector),
    /// The protection of Kerberos.
    Kerberos(KerberosProtector),
}

impl PduProtector {
    /// The length of the signatures of this half's own PDUs.
    #[must_use]
    pub fn signature_length(&self, level: u8) -> usize {
        match self {
            Self::Ntlm(_) => SIGNATURE,
            Self::Kerberos(protector) => protector.signature_length(level),
        }
    }

    /// Verifies and opens a PDU; `None` where its signature is not valid.
    pub fn open(&mut self, pdu: &RawPdu) -> Option<OpenedPdu> {
        let trailer = pdu.trailer()?;
        let mut bytes = pdu.bytes.to_vec();
        let signed = bytes.len() - pdu.auth_value().len();
        let stub = pdu.stub();
        let is_valid = match self {
            Self::Ntlm(_) if pdu.auth_value().len() != SIGNATURE => false,
            Self::Ntlm(ntlm) => ntlm.open(trailer.level, &mut bytes, stub.clone(), signed),
            Self::Kerberos(kerberos) => {
                kerberos.open(trailer.level, &mut bytes, stub.clone(), signed)
            }
        };
        is_valid.then(|| OpenedPdu {
            head: bytes[..stub.start].to_vec(),
            stub: bytes[stub].to_vec(),
            trailer,
        })
    }

    /// Protects a PDU again: its bytes as they go to the host. `None` where its header announces a
    /// signature of a length that the mechanism does not have.
    pub fn seal(&mut self, pdu: &OpenedPdu) -> Option<Vec<u8>> {
        let mut bytes = pdu.to_bytes();
        let begin = pdu.head.len();
        let stub = begin..begin + pdu.stub.len();
        let signed = bytes.len() - pdu.signature_length();
        let level = pdu.trailer.level;
        let is_sealed = match self {
            Self::Ntlm(_) if pdu.signature_length() != SIGNATURE => false,
            Self::Ntlm(ntlm) => {
                ntlm.seal(level, &mut bytes, stub, signed);
                true
            }
            Self::Kerberos(kerberos) => kerberos.seal(level, &mut bytes, stub, signed),
        };
        is_sealed.then_some(bytes)
    }

    /// Goes on as after so many PDUs with so many bytes of encrypted stubs.
    pub fn skip(&mut self, pdus: u32, stub_bytes: u64) {
        match self {
            Self::Ntlm(ntlm) => ntlm.skip(pdus, stub_bytes),
            Self::Kerberos(kerberos) => kerberos.skip(pdus),
        }
    }
}
