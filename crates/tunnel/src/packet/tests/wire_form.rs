//! Packets as they are on the wire, byte for byte: made by another implementation (Python's
//! `cryptography`, from docs/formats/wan-packets.md) of the context, the exporter and the payload
//! that these tests use. They do not change as long as the format's version does not.

use std::time::Duration;

use super::*;

/// A Probe frame, sealed by the dialler on path 0 as number 0, and as number 0x1234 with the key
/// after one update.
const PACKETS: [(CipherSuite, &str, &str); 2] = [
    (
        CipherSuite::Aes256Gcm,
        "43151515151515151563e85f24c5215a380784a5dd700e06c8a8f9ee7fd7",
        "4c1515151515151515c68f39d7fb7a8e323b1a40d0c76310d20a43f153c3",
    ),
    (
        CipherSuite::ChaCha20Poly1305,
        "5b1515151515151515131cdfd34e31cc585f7d6fcfd1ff7215a75c451cdc",
        "5f151515151515151548e17fc476d905d4dedf0bb790b8455537e5183f3f",
    ),
];

const PROBE: [u8; 2] = [0x01, 0x41];

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn packets_have_the_form_that_is_written_down() {
    for (suite, first, renewed) in PACKETS {
        let limits = KeyLimits {
            packets_per_key: 0x1234,
            ..KeyLimits::of(suite)
        };
        let (mut dialler, mut listener) = ends_with(suite, limits);
        dialler.sealer.set_probe_timeout(Duration::ZERO);
        let (number, datagram) = dialler.seal(Time::ZERO, &PROBE);
        assert_eq!((number, hex(&datagram)), (0, first.to_owned()));
        assert_eq!(
            listener.open(Time::ZERO, &datagram),
            Ok((0, PROBE.to_vec()))
        );

        dialler.sealer.acknowledged(Time::ZERO, 0);
        dialler.sealer.skip_to(0x1234);
        let (number, datagram) = dialler.seal(Time::ZERO, &PROBE);
        assert_eq!((number, hex(&datagram)), (0x1234, renewed.to_owned()));
        assert_eq!(
            listener.open(Time::ZERO, &datagram),
            Ok((0x1234, PROBE.to_vec()))
        );
        assert_eq!(listener.opener.statistics().key_updates, 1);
    }
}
