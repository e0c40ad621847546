//! The hostile peer tries to read what the honest one sent: by hash, by guessed bytes, by runs.

use bytes::Bytes;
use reduce::testing::{ForgedOperation, ForgedSources, chunk_key, forged_record};
use tunnel::ResetReason;
use vocab::SeededRandom;

use crate::site::{HONEST, HOSTILE, TestSite};

/// Letters that a secret may be made of.
const ALPHABET: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

fn noise(seed: u64) -> Bytes {
    let mut bytes = vec![0; 20_000];
    SeededRandom::from_seed(seed).fill(&mut bytes);
    bytes.into()
}

/// Makes the chunk that holds the secret, and another one with the same contents that no peer has
/// sent.
fn secrets() -> [Bytes; 2] {
    [2, 12].map(|seed| {
        let mut chunk = noise(seed).to_vec();
        chunk[500..554].copy_from_slice(b"password=tX7/qVbN0c3LkRz+W8uEoPaYsd2GfJhM5iKnQ4vB6xCtZ");
        chunk.into()
    })
}

/// The peer sends these chunks, one after the other, to a server.
fn upload(site: &mut TestSite, peer: usize, chunks: &[Bytes]) {
    let flow = site.open(peer);
    for chunk in chunks {
        let operation = ForgedOperation::NewChunk(chunk.clone());
        let record = forged_record(
            ForgedSources::Listed(Vec::new()),
            &[operation],
            &[&chunk[..]],
        );
        assert_eq!(site.write(peer, flow, &record), record.len());
    }
    assert_eq!(site.written(), chunks.concat());
    site.peers[peer].session.reset(flow, ResetReason::HostReset);
    site.exchange();
}

/// Sends a record in a flow of its own. Gives what the engine asked for and what the server got.
fn try_record(site: &mut TestSite, peer: usize, record: &Bytes) -> (Vec<Bytes>, Vec<u8>) {
    let flow = site.open(peer);
    assert_eq!(site.write(peer, flow, record), record.len());
    let tried = (site.peers[peer].repair_requests(flow), site.written());
    site.peers[peer].session.reset(flow, ResetReason::HostReset);
    site.exchange();
    tried
}

/// Records that give bytes of the secret chunk to a server if they resolve.
fn references(shared: &Bytes, secret: &Bytes) -> Vec<Bytes> {
    let (first, key) = (chunk_key(shared), chunk_key(secret));
    let listed = || ForgedSources::Listed(vec![key]);
    let whole = ForgedOperation::WholeSource;
    vec![
        forged_record(listed(), &[whole(0)], &[secret]),
        forged_record(
            ForgedSources::Run(vec![first, key]),
            &[whole(0), whole(1)],
            &[shared, secret],
        ),
        guess(key, 500, &secret[500..554]),
    ]
}

/// A record that says what stands at this offset of a chunk.
fn guess(key: u64, offset: usize, bytes: &[u8]) -> Bytes {
    let part = ForgedOperation::PartOfSource {
        source: 0,
        offset,
        length: bytes.len(),
    };
    forged_record(ForgedSources::Listed(vec![key]), &[part], &[bytes])
}

#[test]
fn the_dictionary_of_another_peer_cannot_be_read() {
    let mut site = TestSite::new();
    let (shared, [secret, absent]) = (noise(1), secrets());
    upload(&mut site, HONEST, &[shared.clone(), secret.clone()]);
    upload(&mut site, HOSTILE, std::slice::from_ref(&shared));
    for when in ["in memory", "on disk", "read from disk"] {
        if when == "on disk" {
            site.restart();
        }
        let there = references(&shared, &secret);
        let not_there = references(&shared, &absent);
        for (record, not_there) in there.iter().zip(&not_there) {
            let (asked, delivered) = try_record(&mut site, HOSTILE, record);
            assert_eq!(asked.len(), 1, "{when}");
            assert!(delivered.is_empty(), "{when}");
            // The very same request as for what nobody ever sent.
            let absent = try_record(&mut site, HOSTILE, not_there);
            assert_eq!((asked, delivered), absent, "{when}");
        }
        // The records are sound: they do resolve for the peer whose chunks these are.
        for record in &there {
            let (asked, delivered) = try_record(&mut site, HONEST, record);
            assert!(asked.is_empty() && !delivered.is_empty(), "{when}");
        }
    }
    site.check_limits();
}

/// 54 bytes were read so, one after the other, by 64 guesses each.
#[test]
fn a_secret_cannot_be_guessed_byte_by_byte() {
    let mut site = TestSite::new();
    let [secret, absent] = secrets();
    upload(&mut site, HONEST, &[noise(1), secret.clone()]);
    let key = chunk_key(&secret);
    let (expected, _) = try_record(&mut site, HOSTILE, &guess(chunk_key(&absent), 509, b"A"));
    for offset in [509, 530, 553] {
        assert!(ALPHABET.contains(&secret[offset]));
        for letter in ALPHABET {
            let record = guess(key, offset, &[*letter]);
            let (asked, delivered) = try_record(&mut site, HOSTILE, &record);
            assert_eq!(asked, expected, "{offset}, {letter}");
            assert!(delivered.is_empty());
        }
    }
    // The honest peer's own guess is right once in each alphabet.
    let mut delivered = 0;
    for letter in ALPHABET {
        let record = guess(key, 509, &[*letter]);
        delivered += try_record(&mut site, HONEST, &record).1.len();
    }
    assert_eq!(delivered, 1);
    site.honest_peer_is_served();
}
