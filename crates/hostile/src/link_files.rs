//! Fuzz entries of `lab` and `emulate` for the files of the link emulator: an untrusted packet log,
//! a recorded line, a schedule of changes.
//!
//! A parsed log is written and read again equal. A parsed trace or schedule can be played: time
//! moves forward, and no packet comes out that did not go in.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use emulate::{DeliveryTrace, DirectionConfig, LineConfig, LinkDirection, LinkSchedule};
use emulator::link::replay::rewritten;
use vocab::{Bitrate, Time};

use crate::seed::{CorpusSeed, seed};

/// No message repeats more of a log than this, however long its lines are.
const MESSAGE_MAX: usize = 2_000;

/// Number of polls of a line.
const POLLS: usize = 200;

/// A packet log: as much as is understood is written and read again equal.
pub(crate) fn packet_log(bytes: &[u8]) {
    match rewritten(bytes) {
        Ok(written) => {
            let again = rewritten(&written).expect("what was written is a log");
            assert_eq!(again, written);
        }
        Err(error) => {
            let length = format!("{error:#}").len();
            assert!(length <= MESSAGE_MAX, "a message of {length} bytes");
        }
    }
}

/// A recorded line, in the format of mahimahi.
pub(crate) fn delivery_trace(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    match DeliveryTrace::parse_mahimahi(text) {
        Ok(trace) => {
            assert!(!trace.period().is_zero());
            play(DirectionConfig {
                line: LineConfig::Trace(Arc::new(trace)),
                ..DirectionConfig::default()
            });
        }
        Err(error) => assert!((1..=text.lines().count().max(1)).contains(&error.line)),
    }
}

/// A schedule of changes, as CSV.
pub(crate) fn schedule(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    match LinkSchedule::from_csv(text) {
        Ok(schedule) => {
            let steps = schedule.steps();
            assert!(steps.is_sorted_by_key(|step| step.at));
            let config = DirectionConfig {
                line: LineConfig::Rate(Bitrate::from_bits_per_second(1_000_000)),
                schedule: Some(Arc::new(schedule)),
                ..DirectionConfig::default()
            };
            // A rate or a delay beyond what the models hold is refused there.
            if config.check().is_ok() {
                play(config);
            }
        }
        Err(error) => assert!((1..=text.lines().count().max(1)).contains(&error.line)),
    }
}

/// Plays three packets, and their outcomes for a short time.
fn play(config: DirectionConfig) {
    let mut direction = LinkDirection::new(config, 1);
    let mut now = Time::ZERO;
    for _ in 0..3 {
        direction.handle(now, Bytes::from_static(&[0x45; 1_000]));
        now += Duration::from_millis(1);
    }
    for _ in 0..POLLS {
        while let Some(delivery) = direction.poll_output(now) {
            assert!(delivery.due <= now);
        }
        let Some(next) = direction.poll_timeout() else {
            break;
        };
        assert!(next >= now, "{next:?} is before {now:?}");
        now = next.max(now + Duration::from_nanos(1));
    }
    let counters = direction.counters();
    assert_eq!(counters.offered.packets, 3);
    assert!(counters.delivered.packets <= 3);
}

/// Good inputs for [`packet_log`].
pub(crate) fn packet_log_seeds() -> Vec<CorpusSeed> {
    const LOG: &str = concat!(
        "# trunkline packet log, version 1\n",
        "# program: trunkline 0.1.0\n",
        "# framing: ethernet\n",
        "# set: {\"at_ns\":0,\"next\":[0,0],\"settings\":{\"rate\":\"8Mbit\",\"loss\":\"1%,burst=3\",",
        "\"trace-back\":\"/tmp/trace\"},\"files\":[{\"path\":\"/tmp/trace\",\"blake3\":\"00\"}]}\n",
        "direction,index,arrived_ns,length_bytes,ecn,fate,at_ns,flags\n",
        "forward,0,17,1500,2,delivered,1500017,corrupted+marked\n",
        "forward,1,18,1500,0,lost,3000017,\n",
        "# set: {\"at_ns\":20,\"next\":[2,0],\"settings\":{\"preset\":\"dsl\"},\"files\":[]}\n",
        "back,0,19,40,3,queue_full,19,\n",
        "back,1,20,40,3,delivered,60,copy\n",
        "# end: {\"records\":4,\"lost_records\":0,\"error\":null}\n",
    );
    vec![
        seed("whole", LOG),
        seed("cut-off", &LOG[..LOG.len() - 70]),
        seed("head", &LOG[..34]),
    ]
}

/// Good inputs for [`delivery_trace`].
pub(crate) fn delivery_trace_seeds() -> Vec<CorpusSeed> {
    vec![
        seed("steady", "1\n"),
        seed("uneven", "# from a drive\n0\n0\n3\n\n17\n250\n"),
        seed("long", "4294967295\n"),
    ]
}

/// Good inputs for [`schedule`].
pub(crate) fn schedule_seeds() -> Vec<CorpusSeed> {
    vec![
        seed(
            "repeats",
            "# repeat 60s\ntime,rate,delay,loss\n0,10Mbit,50ms,0%\n12.5,2Mbit,,1%\n20s,0,,\n",
        ),
        seed("delays", "delay,time\n1ms,0\n9min,1us\n,2\n"),
        seed("short", "# repeat 1ms\ntime,rate\n0,0\n0.0005,1Gbit\n"),
    ]
}
