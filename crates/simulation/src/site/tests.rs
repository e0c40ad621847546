//! Transfers over a small site in every mode, what they cost, and that one seed gives one result.

use emulate::DirectionConfig;
use vocab::{Bitrate, ByteCount, Probability};

use super::*;
use crate::recording::{TappedHeader, TappedPacket};
use crate::scripts::{MAILBOX_PORT, MailGeneration};

const RATE: u64 = 10_000_000;
const BLOCK: u32 = 61_440;

fn link(loss: f64) -> LinkConfig {
    let way = DirectionConfig {
        line: emulate::LineConfig::Rate(Bitrate::from_bits_per_second(RATE)),
        delay: Duration::from_millis(20),
        loss: Probability::from_fraction(loss).unwrap().into(),
        queue: ByteCount::kibibytes(128).into(),
        ..DirectionConfig::default()
    };
    LinkConfig::symmetric(way, 3)
}

fn site(is_accelerated: Option<bool>, loss: f64) -> SimulatedSite {
    SimulatedSite::new(SiteSettings {
        link: link(loss),
        nodes: is_accelerated.map(|is_accelerated| NodeSettings {
            is_accelerated,
            correction: NodeCorrection::Auto,
        }),
        hosts: HostLatency::default(),
        seed: 3,
    })
    .unwrap()
}

fn files(bytes: usize) -> Vec<(String, Bytes)> {
    let random = |seed| {
        let mut content = vec![0; bytes];
        SeededRandom::from_seed(seed).fill(&mut content);
        Bytes::from(content)
    };
    vec![
        ("one.bin".to_owned(), random(1)),
        ("two.bin".to_owned(), random(2)),
    ]
}

const WORKLOADS: [SimulatedWorkload; 7] = [
    SimulatedWorkload::HttpDownload,
    SimulatedWorkload::FtpDownload,
    SimulatedWorkload::FtpUpload,
    SimulatedWorkload::SmbSerialDownload { block: BLOCK },
    SimulatedWorkload::MailDownload {
        generation: MailGeneration::Xp,
    },
    SimulatedWorkload::MailDownload {
        generation: MailGeneration::Plain2003,
    },
    SimulatedWorkload::MailDownload {
        generation: MailGeneration::Optimised2003,
    },
];

#[test]
fn files_arrive_whole_in_every_mode() {
    let files = files(300_000);
    let expected: Vec<Option<Bytes>> = files.iter().map(|(_, bytes)| Some(bytes.clone())).collect();
    for workload in WORKLOADS {
        for mode in [None, Some(false), Some(true)] {
            let outcome = site(mode, 0.01).transfer(workload, &files);
            assert_eq!(outcome.failure, None, "{workload:?}, {mode:?}");
            assert!(outcome.arrivals == expected, "{workload:?}, {mode:?}");
        }
    }
}

/// Time of a transfer of two files.
fn time_of(site: &mut SimulatedSite, workload: SimulatedWorkload, bytes: usize) -> Duration {
    let began = site.now();
    let outcome = site.transfer(workload, &files(bytes));
    assert_eq!(outcome.failure, None);
    site.now().since(began)
}

#[test]
fn serial_reads_wait_a_round_trip_unless_accelerated() {
    let workload = SimulatedWorkload::SmbSerialDownload { block: BLOCK };
    let bytes = 20 * BLOCK as usize;
    let [baseline, transport, accelerated] =
        [None, Some(false), Some(true)].map(|mode| time_of(&mut site(mode, 0.0), workload, bytes));
    // 40 READs wait 40 ms each, and 2.5 MB take 2 s on the line.
    let waits = Duration::from_millis(40 * 40);
    let line = Duration::from_millis(2_000);
    assert!(baseline > waits + line, "{baseline:?}");
    assert!(transport > waits + line, "{transport:?}");
    assert!(accelerated < line + waits / 2, "{accelerated:?}");
}

/// Round trips of the link in front of the mail client's first call after its log-on.
fn log_on_round_trips(is_accelerated: Option<bool>, generation: MailGeneration) -> u128 {
    let mut site = site(is_accelerated, 0.0);
    let began = site.now();
    site.start_recording();
    site.mark("begin");
    let workload = SimulatedWorkload::MailDownload { generation };
    assert_eq!(site.transfer(workload, &files(10_000)).failure, None);
    let packets = site.take_recording().client;
    let is_call = |packet: &&TappedPacket| {
        let is_data = matches!(
            packet.header,
            TappedHeader::Tcp {
                payload_bytes: 1..,
                ..
            }
        );
        is_data && packet.destination.port() == MAILBOX_PORT
    };
    // The calls in front of it are the bind, EcDoConnect or EcDoConnectEx, and RopLogon.
    let after = packets.iter().filter(is_call).nth(3).unwrap();
    after.at.since(began).as_millis() / 40
}

#[test]
fn mail_log_on_takes_no_further_round_trip() {
    for generation in [
        MailGeneration::Xp,
        MailGeneration::Plain2003,
        MailGeneration::Optimised2003,
    ] {
        let baseline = log_on_round_trips(None, generation);
        assert_eq!(baseline, 4, "{generation:?}");
        let accelerated = log_on_round_trips(Some(true), generation);
        assert!(accelerated <= baseline, "{generation:?}: {accelerated}");
    }
}

#[test]
fn path_of_which_little_is_known_is_filled() {
    let way = DirectionConfig {
        line: emulate::LineConfig::Rate(Bitrate::from_bits_per_second(50_000_000)),
        delay: Duration::from_millis(100),
        queue: ByteCount::new(1_250_000).into(),
        ..DirectionConfig::default()
    };
    let mut site = SimulatedSite::new(SiteSettings {
        link: LinkConfig::symmetric(way, 3),
        nodes: Some(NodeSettings {
            is_accelerated: true,
            correction: NodeCorrection::Auto,
        }),
        hosts: HostLatency::default(),
        seed: 3,
    })
    .unwrap();
    // The nodes still search for the path's rate when this ends.
    let _ = time_of(&mut site, SimulatedWorkload::HttpDownload, 1_500_000);
    site.empty_caches();
    let workload = SimulatedWorkload::SmbSerialDownload { block: BLOCK };
    let took = time_of(&mut site, workload, 3_000_000);
    // Two files take 1 s on the line, and six round trips each from the connection to the first READ.
    assert!(took < Duration::from_millis(3_500), "{took:?}");
}

#[test]
fn programs_react_after_their_latency() {
    let took = |hosts| {
        let mut site = SimulatedSite::new(SiteSettings {
            link: link(0.0),
            nodes: None,
            hosts,
            seed: 3,
        })
        .unwrap();
        let began = site.now();
        let workload = SimulatedWorkload::SmbSerialDownload { block: BLOCK };
        let files = files(BLOCK as usize * 10);
        assert_eq!(site.transfer(workload, &files[..1]).failure, None);
        site.now().since(began)
    };
    let at_once = took(HostLatency::default());
    let slow = took(HostLatency {
        client: Duration::from_millis(5),
        server: Duration::from_millis(2),
    });
    // Ten READs, and six requests before and behind them.
    let more = slow - at_once;
    let expected = Duration::from_millis(16 * 7);
    assert!(more >= expected, "{more:?}");
    assert!(more < expected + Duration::from_millis(60), "{more:?}");
}

#[test]
fn equal_seeds_record_equal_packets() {
    let record = || {
        let mut site = site(Some(true), 0.02);
        site.start_recording();
        site.mark("begin");
        let workload = SimulatedWorkload::SmbSerialDownload { block: BLOCK };
        assert_eq!(site.transfer(workload, &files(200_000)).failure, None);
        site.take_recording()
    };
    let (one, two) = (record(), record());
    assert!(one.client.len() > 100 && one.link.len() > 100);
    assert!(one == two, "two simulations with one seed differ");
}

#[test]
fn repeated_files_cross_the_link_once() {
    let mut site = site(Some(false), 0.0);
    let link_bytes = |site: &mut SimulatedSite| {
        site.start_recording();
        let _ = time_of(site, SimulatedWorkload::HttpDownload, 500_000);
        let packets = site.take_recording().link;
        packets.iter().map(|packet| packet.ip_bytes).sum::<u64>()
    };
    let cold = link_bytes(&mut site);
    let warm = link_bytes(&mut site);
    site.empty_caches();
    let cold_again = link_bytes(&mut site);
    assert!(cold > 1_000_000, "{cold}");
    assert!(warm < cold / 20, "{warm} of {cold}");
    assert!(cold_again > 1_000_000, "{cold_again}");
}

#[test]
fn link_that_carries_nothing_has_no_session() {
    let mut dead = link(0.0);
    dead.forward.loss = Probability::from_fraction(1.0).unwrap().into();
    let failed = SimulatedSite::new(SiteSettings {
        link: dead,
        nodes: Some(NodeSettings {
            is_accelerated: false,
            correction: NodeCorrection::Off,
        }),
        hosts: HostLatency::default(),
        seed: 1,
    });
    assert!(matches!(
        failed.err(),
        Some(SimulationFailure::NoSession(_))
    ));
}

#[test]
fn echo_takes_the_round_trip() {
    for mode in [None, Some(true)] {
        let echo = site(mode, 0.0).ping().unwrap();
        // 84 bytes at 10 Mbit/s, twice; a packet of the nodes may be on the line.
        let expected = Duration::from_millis(40) + 2 * Duration::from_nanos(67_200);
        let most = expected + 2 * Duration::from_micros(1_200);
        assert!((expected..=most).contains(&echo), "{mode:?}: {echo:?}");
    }
}
