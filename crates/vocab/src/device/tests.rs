//! Tests of the text form and of the checks of device models.

use std::time::Duration;

use super::*;

const ROUTER: &str = r#"
name = "router"
ports = 4
transit = [{ size = "64B", time = "30us" }, { size = "1500B", time = "180us" }]
input_queue = { packets = 75 }

[servers]
count = 2
service = [{ size = "0B", time = "9us" }]

[output]
rate = "100Mbit"
overhead = "38B"
queue = { slots = 512, slot = "256B" }

[[port]]
number = 3
output = { rate = "1Gbit", queue = { bytes = "64KiB" }, aqm = { kind = "codel", target = "5ms", interval = "100ms" } }
"#;

fn read(text: &str) -> Result<DeviceModel, String> {
    toml::from_str(text).map_err(|error| error.to_string())
}

#[test]
fn model_reads_back_what_it_writes() {
    let mut model = read(ROUTER).unwrap();
    assert_eq!(read(&toml::to_string(&model).unwrap()).unwrap(), model);
    // Values that the usual notation rounds.
    model.output.rate = Some(Bitrate::from_bits_per_second(51_841_237));
    model.output.queue = DeviceQueueLimit::Bytes(ByteCount::new(1_234_567));
    model.output.policer = Some(PolicerModel {
        rate: Bitrate::from_bits_per_second(1_234_567_891),
        burst: ByteCount::new(123_457),
    });
    model.transit = SizeTimeTable::constant(Duration::from_nanos(12_345_678));
    assert_eq!(read(&toml::to_string(&model).unwrap()).unwrap(), model);
}

#[test]
fn ports_have_their_own_outputs() {
    let model = read(ROUTER).unwrap();
    assert_eq!(
        model.output_of(0).rate,
        Some(Bitrate::from_bits_per_second(100_000_000))
    );
    assert_eq!(
        model.output_of(3).queue,
        DeviceQueueLimit::Bytes(ByteCount::kibibytes(64))
    );
    // 30 us less 9 us of service and 102 bytes at 100 Mbit/s.
    assert_eq!(
        model.fixed_delay(0, 64),
        Duration::from_nanos(30_000 - 9_000 - 8_160)
    );
    assert_eq!(model.output.queue.cost(1_538), 7);
}

#[test]
fn table_is_straight_between_and_beyond_points() {
    let point = |size, nanoseconds| SizeTimePoint {
        size: ByteCount::new(size),
        time: Duration::from_nanos(nanoseconds),
    };
    let table = SizeTimeTable::new(vec![
        point(100, 1_000),
        point(200, 1_501),
        point(300, 1_501),
    ]);
    let table = table.unwrap();
    let at = |size| table.at(size).as_nanos();
    assert_eq!(
        [at(100), at(150), at(200), at(250)],
        [1_000, 1_251, 1_501, 1_501]
    );
    assert_eq!([at(0), at(400)], [499, 1_501]);
    assert_eq!(
        SizeTimeTable::constant(Duration::from_nanos(7))
            .at(9_000)
            .as_nanos(),
        7
    );
    assert!(SizeTimeTable::new(Vec::new()).is_err());
    assert!(SizeTimeTable::new(vec![point(100, 1), point(100, 2)]).is_err());
}

#[test]
fn errors_say_what_to_write() {
    for (from, to, part) in [
        ("ports = 4", "ports = 0", "1 to 1024 ports"),
        ("number = 3", "number = 4", "the device has 4 ports"),
        (
            "packets = 75",
            "packets = 75, bytes = \"9kB\"",
            "a queue needs one limit",
        ),
        ("packets = 75", "packets = 0", "at least 1"),
        ("slots = 512", "slots = 6", "at least 7"),
        ("\"38B\"", "\"11kB\"", "at most 10kB"),
        ("count = 2", "count = 0", "leave out [servers]"),
        ("\"100Mbit\"", "\"0bit\"", "leave it out for no limit"),
        ("\"30us\"", "\"17us\"", "transit of 64 B is \"17us\""),
        (
            "size = \"64B\"",
            "size = \"1500B\"",
            "larger than the one before",
        ),
        ("name = \"router\"", "nam = \"router\"", "nam"),
        (
            "overhead = \"38B\"",
            "overhead = \"38B\"\nburst = \"1500B\"",
            "output.burst",
        ),
    ] {
        let error = read(&ROUTER.replacen(from, to, 1)).unwrap_err();
        assert!(error.contains(part), "{error}");
    }
}
