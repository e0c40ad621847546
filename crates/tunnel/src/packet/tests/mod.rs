//! Tests of two ends of a path, with an exporter like that of TLS: a different master secret, label
//! or context gives a different secret.

mod addresses;
mod frames;
mod key_updates;
mod sealing;
mod wire_form;

use std::convert::Infallible;

use bytes::BytesMut;
use ring::hmac;
use vocab::{NodeId, Time};

use super::*;

/// The names of the path that the tests use; the dialler's own first.
const DIALLER_ID: ConnectionId = ConnectionId([0xd1; 8]);
const LISTENER_ID: ConnectionId = ConnectionId([0x15; 8]);

/// Key context that the two nodes use in these tests.
fn context(suite: CipherSuite) -> KeyContext {
    KeyContext {
        version: 1,
        suite,
        dialler: NodeId([1; 32]),
        listener: NodeId([2; 32]),
        dialler_nonce: [3; 16],
        listener_nonce: [4; 16],
    }
}

/// A secret as the TLS session with this master secret exports it.
fn exported(master: &[u8], role: TlsRole, context: KeyContext) -> PathSecret {
    let Ok(secret) = PathSecret::export(role, context, |room, label, context| {
        let key = hmac::Key::new(hmac::HMAC_SHA256, master);
        let tag = hmac::sign(&key, &[label, context].concat());
        room.copy_from_slice(tag.as_ref());
        Ok::<(), Infallible>(())
    });
    secret
}

/// One node's end of a path.
struct PathEnd {
    sealer: PacketSealer,
    opener: PacketOpener,
}

impl PathEnd {
    fn new(secret: &mut PathSecret, role: TlsRole, path: u32, limits: KeyLimits) -> Self {
        let connection_ids = match role {
            TlsRole::Dialler => ConnectionIds {
                ours: DIALLER_ID,
                theirs: LISTENER_ID,
            },
            TlsRole::Listener => ConnectionIds {
                ours: LISTENER_ID,
                theirs: DIALLER_ID,
            },
        };
        let (sealer, opener) = secret
            .path(Time::ZERO, path, connection_ids, limits)
            .unwrap();
        Self { sealer, opener }
    }

    fn seal(&mut self, now: Time, payload: &[u8]) -> (u64, Vec<u8>) {
        let (number, datagram) = self.try_seal(now, payload).unwrap();
        (number, datagram)
    }

    fn try_seal(&mut self, now: Time, payload: &[u8]) -> Result<(u64, Vec<u8>), SealError> {
        let mut packet = BytesMut::new();
        let start = PacketSealer::begin(&mut packet);
        packet.extend_from_slice(payload);
        let number = self.sealer.seal(now, &mut packet, start)?;
        assert_eq!(packet.len(), payload.len() + OVERHEAD);
        Ok((number, packet.to_vec()))
    }

    /// The number and the payload of a datagram, which is not changed.
    fn open(&mut self, now: Time, datagram: &[u8]) -> Result<(u64, Vec<u8>), PacketRefusal> {
        let mut datagram = datagram.to_vec();
        let opened = self.opener.open(now, &mut datagram)?;
        Ok((opened.number(), datagram[opened.payload()].to_vec()))
    }
}

/// The two ends of one path.
fn ends_with(suite: CipherSuite, limits: KeyLimits) -> (PathEnd, PathEnd) {
    let [dialler, listener] = [TlsRole::Dialler, TlsRole::Listener].map(|role| {
        let mut secret = exported(b"one TLS session", role, context(suite));
        PathEnd::new(&mut secret, role, 0, limits)
    });
    (dialler, listener)
}

fn ends() -> (PathEnd, PathEnd) {
    let suite = CipherSuite::Aes256Gcm;
    ends_with(suite, KeyLimits::of(suite))
}
