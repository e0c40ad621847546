//! Tests of queue disciplines and token buckets with the vectors of `tests/vectors`, which were
//! made from their specifications' pseudocode in another language, before the implementation.
//!
//! Each vector is a list of packets with their fates. It goes, with its own random numbers, through
//! the whole bottleneck, or for a policer through a whole direction; every fate, mark and time must
//! match the vector to the nanosecond.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use vocab::{Bitrate, ByteCount, Probability, Time};

use crate::bottleneck::{Bottleneck, BottleneckExit};
use crate::config::{
    CoDelConfig, DirectionConfig, EcnMode, LineConfig, PeakBucket, PieConfig, QueueConfig,
    QueueDiscipline, QueueLimit, RedConfig, TokenBucket,
};
use crate::direction::{EnqueueOutcome, LinkDirection};
use crate::packet::DropReason;
use crate::packet::{EmulatedPacket, PacketImpairments};

/// One of the files.
struct TestVector {
    name: String,
    parameters: HashMap<String, String>,
    rows: Vec<VectorRow>,
}

/// A packet, and its expected outcome.
struct VectorRow {
    arrival: Time,
    length: usize,
    is_ecn_capable: bool,
    uniform: f64,
    ending: ExpectedOutcome,
}

/// Expected outcome for a packet, and its time.
#[derive(Clone, Debug, PartialEq)]
struct ExpectedOutcome {
    fate: String,
    at: Time,
}

impl ExpectedOutcome {
    fn new(fate: &str, at: Time) -> Self {
        let fate = fate.to_owned();
        Self { fate, at }
    }
}

#[test]
fn codel_is_that_of_rfc_8289() {
    check_bottleneck("codel", 11, |vector| QueueDiscipline::CoDel(codel(vector)));
}

#[test]
fn pie_is_that_of_rfc_8033() {
    check_bottleneck("pie", 14, |vector| QueueDiscipline::Pie(pie(vector)));
}

#[test]
fn red_is_that_of_floyd_and_jacobson() {
    check_bottleneck("red", 11, |vector| QueueDiscipline::Red(red(vector)));
}

#[test]
fn a_shaper_is_that_of_tbf() {
    for vector in vectors("shaper", 8) {
        let line = LineConfig::Shaper(vector.bucket());
        let endings = through_bottleneck(&vector, line, QueueDiscipline::DropTail);
        vector.expect(&endings);
    }
}

#[test]
fn policer_follows_rfc_2697_and_rfc_2698() {
    for vector in vectors("policer", 8) {
        let config = DirectionConfig {
            policer: Some(vector.bucket()),
            ..DirectionConfig::default()
        };
        let mut direction = LinkDirection::new(config, 0);
        let endings: Vec<ExpectedOutcome> = vector
            .rows
            .iter()
            .map(|row| match direction.handle(row.arrival, row.packet()) {
                EnqueueOutcome::Queued => {
                    let delivery = direction.poll_output(row.arrival).unwrap();
                    ExpectedOutcome::new("delivered", delivery.due)
                }
                EnqueueOutcome::Dropped(DropReason::Policed) => {
                    ExpectedOutcome::new("dropped_enqueue", row.arrival)
                }
                EnqueueOutcome::Dropped(reason) => panic!("{}: {reason:?}", vector.name),
            })
            .collect();
        vector.expect(&endings);
    }
}

fn codel(vector: &TestVector) -> CoDelConfig {
    CoDelConfig {
        target: vector.duration("target"),
        interval: vector.duration("interval"),
        ecn: vector.ecn(),
    }
}

fn pie(vector: &TestVector) -> PieConfig {
    PieConfig {
        target: vector.duration("target"),
        update: vector.duration("update"),
        burst: vector.duration("max_burst"),
        ecn: vector.ecn(),
    }
}

fn red(vector: &TestVector) -> RedConfig {
    RedConfig {
        minimum: vector.bytes("min_th"),
        maximum: vector.bytes("max_th"),
        probability: Probability::from_fraction(vector.fraction("max_p")).unwrap(),
        weight: vector.fraction("w_q"),
        packet_time: vector.duration("packet_time"),
        gentle: vector.is("gentle"),
        ecn: vector.ecn(),
    }
}

/// Sends the vectors of a model through a line of fixed rate; there must be `count` of them.
fn check_bottleneck(model: &str, count: usize, discipline: fn(&TestVector) -> QueueDiscipline) {
    for vector in vectors(model, count) {
        let line = LineConfig::Rate(vector.rate("rate"));
        let endings = through_bottleneck(&vector, line, discipline(&vector));
        vector.expect(&endings);
    }
}

fn through_bottleneck(
    vector: &TestVector,
    line: LineConfig,
    discipline: QueueDiscipline,
) -> Vec<ExpectedOutcome> {
    let config = DirectionConfig {
        overhead: vector.overhead(),
        queue: QueueConfig {
            limit: QueueLimit::bytes(vector.bytes("limit")),
            discipline,
        },
        line,
        ..DirectionConfig::default()
    };
    let mut bottleneck = Bottleneck::new(Time::ZERO, &config);
    let mut endings = vec![None; vector.rows.len()];
    let mut note = |exit: BottleneckExit| {
        let ending = ending(&exit, vector.rows[exit.packet.index as usize].arrival);
        let before = endings[exit.packet.index as usize].replace(ending);
        assert_eq!(before, None, "{}: a packet left twice", vector.name);
    };
    for (index, row) in vector.rows.iter().enumerate() {
        while let Some(exit) = bottleneck.poll(row.arrival) {
            note(exit);
        }
        let packet = EmulatedPacket {
            index: index as u64,
            arrived: row.arrival,
            counted: row.length as u64,
            bytes: row.packet(),
            fate: PacketImpairments::default(),
            ecn: 0,
            marked: false,
        };
        bottleneck.push(row.arrival, packet, || row.uniform);
    }
    while let Some(exit) = bottleneck.poll(Time::NEVER) {
        note(exit);
    }
    endings
        .into_iter()
        .map(|ending| ending.expect("every packet leaves in the end"))
        .collect()
}

fn ending(exit: &BottleneckExit, arrival: Time) -> ExpectedOutcome {
    let fate = match exit.dropped {
        None if exit.packet.marked => "marked",
        None => "delivered",
        // A discipline that drops a packet at its arrival does not see it depart, and no vector
        // has a packet dropped at its departure in the nanosecond of its arrival.
        Some(DropReason::Aqm) if exit.at == arrival => "dropped_enqueue",
        Some(DropReason::Aqm) => "dropped_dequeue",
        Some(DropReason::TooLongForBucket) => "dropped_enqueue",
        Some(DropReason::QueueFull) => "dropped_full",
        Some(other) => panic!("{other:?} has no place in a vector"),
    };
    ExpectedOutcome::new(fate, exit.at)
}

/// The vectors of one model. The caller states their number, so that a missing one is noticed.
#[expect(
    clippy::disallowed_methods,
    reason = "the vectors lie in files, which a test may read"
)]
fn vectors(model: &str, count: usize) -> Vec<TestVector> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/vectors");
    let mut vectors = Vec::new();
    for entry in fs::read_dir(folder).expect("the vectors lie beside the crate") {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if name.starts_with(&format!("{model}_")) {
            let text = fs::read_to_string(&path).unwrap();
            vectors.push(TestVector::parse(name, &text));
        }
    }
    assert_eq!(vectors.len(), count, "vectors of {model}");
    vectors
}

impl TestVector {
    fn parse(name: String, text: &str) -> Self {
        let mut lines = text.lines();
        let parameters = lines.next().unwrap().strip_prefix("# ").unwrap();
        let parameters = parameters
            .split(' ')
            .map(|parameter| parameter.split_once('=').unwrap())
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        let columns = lines.next().unwrap();
        assert_eq!(columns, "index,arrival_ns,length,ect,u,fate,time_ns");
        let rows: Vec<VectorRow> = lines.enumerate().map(VectorRow::parse).collect();
        assert!(rows.len() >= 500, "{name} is cut short");
        Self {
            name,
            parameters,
            rows,
        }
    }

    fn expect(&self, endings: &[ExpectedOutcome]) {
        assert_eq!(endings.len(), self.rows.len());
        for (index, (row, ending)) in self.rows.iter().zip(endings).enumerate() {
            assert_eq!(*ending, row.ending, "{}, packet {index}", self.name);
        }
    }

    fn text(&self, name: &str) -> &str {
        let value = self.parameters.get(name);
        value.unwrap_or_else(|| panic!("{} has no {name}", self.name))
    }

    fn number(&self, name: &str) -> u64 {
        self.text(name).parse().unwrap()
    }

    fn fraction(&self, name: &str) -> f64 {
        self.text(name).parse().unwrap()
    }

    fn is(&self, name: &str) -> bool {
        match self.text(name) {
            "True" => true,
            "False" => false,
            other => panic!("{}: {name}={other}", self.name),
        }
    }

    fn bytes(&self, name: &str) -> ByteCount {
        ByteCount::new(self.number(name))
    }

    /// Overhead that the line counts beside a packet's IP length: the full-size packet of a
    /// discipline that knows one includes it; other disciplines use 1,500 bytes.
    fn overhead(&self) -> ByteCount {
        let full_packet = ["maxpacket", "mean_packet"]
            .iter()
            .find_map(|name| self.parameters.get(*name));
        ByteCount::new(full_packet.map_or(0, |text| text.parse::<u64>().unwrap() - 1_500))
    }

    fn rate(&self, name: &str) -> Bitrate {
        Bitrate::from_bits_per_second(self.number(name))
    }

    fn duration(&self, name: &str) -> Duration {
        Duration::from_nanos(self.number(name))
    }

    fn ecn(&self) -> EcnMode {
        if self.is("ecn") {
            EcnMode::Mark
        } else {
            EcnMode::Drop
        }
    }

    fn bucket(&self) -> TokenBucket {
        let peak = PeakBucket {
            rate: self.rate("peak_rate"),
            burst: self.bytes("peak_burst"),
        };
        TokenBucket {
            rate: self.rate("rate"),
            burst: self.bytes("burst"),
            peak: (self.number("peak_rate") > 0).then_some(peak),
        }
    }
}

impl VectorRow {
    fn parse((index, line): (usize, &str)) -> Self {
        let fields: Vec<&str> = line.split(',').collect();
        assert_eq!(fields.len(), 7, "{line}");
        assert_eq!(fields[0].parse(), Ok(index));
        let time = |field: &str| Time::from_nanos(field.parse().unwrap());
        Self {
            arrival: time(fields[1]),
            length: fields[2].parse().unwrap(),
            is_ecn_capable: fields[3] == "1",
            uniform: fields[4].parse().unwrap(),
            ending: ExpectedOutcome::new(fields[5], time(fields[6])),
        }
    }

    /// An IPv4 header with the two bits of ECN as the row says, and nothing else.
    fn packet(&self) -> Bytes {
        const ECT_0: u8 = 0b10;
        let mut packet = vec![0; self.length];
        packet[0] = 0x45;
        packet[1] = if self.is_ecn_capable { ECT_0 } else { 0 };
        packet.into()
    }
}
