//! Turn-up tests over an emulated link, as a user runs them.
//!
//! Only facts that a busy machine cannot change are asserted: sizes, windows, counters, and that no
//! rate is above the link's.

use std::collections::HashMap;
use std::fs::File;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use capture::{self, CaptureReader, CapturedPacket, TransportHeader};
use host::kernel::ProcessSignal;
use lab::topology::LabSite;

use crate::circuit::{
    NO_UDP, TestCircuit, TestReport, assert_efficiency, count, list, number, text, wait_for,
};
use crate::setting::SLOW;

/// One run of two seconds each way that is tested.
const BRIEF: &str = "run --duration=2s --walk=0 --connections=1";

/// Packet size that the far router lets through in each direction; it silently drops larger ones.
/// The tester's own messages must get through, too.
const CARRIED: u64 = 1_380;
const SILENT_DROP: &str = "table ip hole {
    chain forward {
        type filter hook forward priority 0
        ip length > 1380 drop
    }
}
";

/// Rules with which the near router replaces the source address of forwarded packets by its own.
const MASQUERADE: &str = "table ip hidden {
    chain out {
        type nat hook postrouting priority 100
        oifname wan0 masquerade
    }
}
";

/// RFC 6349 from end to end: path MTU to the byte behind a silent drop, a rate no higher than the
/// link's, the effective window within 2 % of the one asked for, counters that agree.
#[test]
fn a_circuit_is_measured_from_end_to_end() {
    let Some(mut circuit) = TestCircuit::over(SLOW, "a_circuit_is_measured_from_end_to_end") else {
        return;
    };
    circuit.filter("far", SILENT_DROP);
    circuit.serve();
    let page = circuit.file("turn-up.html");
    let to_fail = format!("--min-path-mtu=1400 --html={}", page.display());
    let test = format!("{BRIEF} --direction=up --window=12kB --max-rate=40Mbit {to_fail}");
    let found = circuit.measure(&test, 1);
    assert_eq!(found["path_mtu_bytes"], CARRIED);
    found.baseline_rtt_ms(10.0);
    let up = found.way("up");
    let rate = number(up, "bottleneck_bit_s");
    // A host that stood still hands on at once what came meanwhile, and a rate that is not called steady may hold that.
    let most = match up["bottleneck_is_steady"] == true {
        true => 10.02e6,
        false => 10.5e6,
    };
    assert!(rate <= most, "the link has 10 Mbit/s: {rate}");
    let run = &up["runs"][0];
    assert_eq!(run["window_bytes"], 12_000);
    let effective = number(run, "effective_window_bytes");
    assert!((effective / 12_000.0 - 1.0).abs() <= 0.02, "{effective}");
    assert_efficiency(run);
    let causes = found.causes();
    assert!(causes.contains(&"mtu-black-hole"), "{causes:?}");
    let page = std::fs::read_to_string(&page).expect("the page was written");
    assert!(page.contains("<svg") && page.contains("FAILED: path MTU up"));
}

/// The first case study, with its BDP of 250 kB on a path five times as long and as slow, whose figures a
/// busy machine changes less: the host is named, with its window.
#[test]
fn window_limited_host_is_named_without_its_queue() {
    let name = "window_limited_host_is_named_without_its_queue";
    let Some(mut circuit) = TestCircuit::over("rate=20Mbit,delay=50ms,queue=250kB", name) else {
        return;
    };
    circuit.serve();
    let test = "--direction=up --window=32kB --congestion=reno --max-rate=60Mbit";
    let found = circuit.measure(&format!("{BRIEF} {test}"), 0);
    let run = &found.way("up")["runs"][0];
    let effective = number(run, "effective_window_bytes");
    assert!((effective / 32_000.0 - 1.0).abs() <= 0.02, "{effective}");
    // RFC 6349 §3.3.1: window x 8 / RTT.
    let formula = effective * 8.0 / (found.baseline_rtt_ms(50.0) / 1e3);
    let ideal = number(run, "ideal_bit_s");
    assert!((ideal / formula - 1.0).abs() < 1e-3, "{ideal} {formula}");
    let throughput = number(run, "throughput_bit_s");
    assert!(throughput <= 1.02 * ideal, "{throughput} of {ideal}");
    let causes = found.causes();
    assert!(causes.contains(&"host-window"), "{causes:?}");
    if run["retransmitted_bytes"] == 0 {
        assert!(!causes.contains(&"drop-tail-queue"), "{causes:?}");
    }
    assert!(!causes.contains(&"shallow-buffer"), "{causes:?}");
}

/// The second case study, on a path four times as long and a hundred and fifty times as slow, whose
/// packets take longer than most host pauses: the buffer is named, with its size to a packet. A
/// host that paused for longer is reported as such, and nothing on the path is blamed; the test is
/// then repeated on a slower path, on which its pauses matter less.
#[test]
fn a_shallow_buffer_is_named_with_its_size() {
    const TIMES_SLOWER: [u32; 5] = [1, 2, 4, 8, 8];
    const QUEUE_BYTES: f64 = 9_000.0;
    const PACKET_BYTES: f64 = 1_500.0;
    /// Names of the buffer, and of findings beside it or instead of it where the testing host
    /// paused.
    const BUFFER_OR_HOST: [&str; 4] = [
        "shallow-buffer",
        "unknown",
        "test-host-limited",
        "cross-traffic",
    ];
    for slower in TIMES_SLOWER {
        let Some(found) = over_a_shallow_buffer(slower) else {
            return;
        };
        let causes = found.causes();
        let is_right = |cause: &&str| BUFFER_OR_HOST.contains(cause);
        assert!(causes.iter().all(is_right), "{causes:?}");
        if causes.contains(&"unknown") || causes.contains(&"test-host-limited") {
            continue;
        }
        let shallow = found.finding("shallow-buffer");
        let shallow = shallow.unwrap_or_else(|| panic!("{causes:?}"));
        let queue = number(&shallow["parameters"], "queue_bytes");
        assert!((queue - QUEUE_BYTES).abs() <= PACKET_BYTES, "{queue}");
        return;
    }
    panic!("no try told the buffer, not even where a packet takes 48 ms");
}

/// Report on a path of 2 Mbit/s and 200 ms, so many times slower, with a buffer of six packets.
fn over_a_shallow_buffer(slower: u32) -> Option<TestReport> {
    let (rate, delay) = (2_000 / slower, 100 * slower);
    let link = format!("rate={rate}kbit,delay={delay}ms,queue=9kB");
    let mut circuit = TestCircuit::over(&link, "a_shallow_buffer_is_named_with_its_size")?;
    circuit.serve();
    let (duration, most) = (2 * slower, 4 * rate);
    let test =
        format!("run --direction=up --walk=0 --connections=1 --rest=0 --duration={duration}s");
    Some(circuit.measure(&format!("{test} --max-rate={most}kbit"), 0))
}

/// TCP segments sent and retransmitted over a short buffer must match captures outside the sending
/// host, to the byte (RFC 6349 §4.2).
#[test]
fn efficiency_matches_a_capture_to_the_byte() {
    let name = "efficiency_matches_a_capture_to_the_byte";
    let Some(mut circuit) = TestCircuit::over("rate=10Mbit,delay=20ms,queue=6kB", name) else {
        return;
    };
    circuit.serve();
    let test = "--direction=up --window=100kB --congestion=reno --max-rate=30Mbit";
    let (found, files) = circuit.measure_captured(&format!("{BRIEF} {test}"), 0);
    let run = &found.way("up")["runs"][0];
    let counted = (count(run, "sent_bytes"), count(run, "retransmitted_bytes"));
    assert!(counted.1 > 0, "the buffer holds four packets");
    // Past the sender's own interface, before the emulated line drops anything.
    for file in [files.client, files.wan] {
        let packets = capture::read(&file).expect("a capture");
        assert_eq!(sent_by(&packets), counted, "{}", file.display());
        assert_eq!(beside_a_stream(&packets), 0, "{}", file.display());
    }
}

/// Payload of the connection that carried most, towards the server: the total, and the part without
/// retransmissions.
fn sent_by(packets: &[CapturedPacket]) -> (u64, u64) {
    let mut connections: HashMap<u16, (u64, u32, u64)> = HashMap::new();
    for packet in packets {
        let TransportHeader::Tcp {
            sequence,
            flags,
            payload_bytes,
            ..
        } = packet.transport
        else {
            continue;
        };
        if packet.source.ip() != LabSite::Near.host_address() {
            continue;
        }
        let begins = sequence.wrapping_add(u32::from(packet.opens_connection()));
        let (sent, first, most) = connections
            .entry(packet.source.port())
            .or_insert((0, begins, 0));
        *sent += u64::from(payload_bytes);
        // What ends a connection may be a reset with a number of its own.
        if payload_bytes > 0 && flags != 0 {
            let end = sequence.wrapping_sub(*first).wrapping_add(payload_bytes);
            *most = (*most).max(u64::from(end));
        }
    }
    let (sent, _, fresh) = connections
        .into_values()
        .max_by_key(|(sent, ..)| *sent)
        .expect("something was sent");
    (sent, sent - fresh)
}

/// Number of TCP packets between the two ends while the longest stream was sent, after its first
/// 300 ms: they would share the bottleneck that is measured. Retransmissions of data lost in the
/// overload do not count.
fn beside_a_stream(packets: &[CapturedPacket]) -> usize {
    /// Pause of a host that splits a stream in two here.
    const GAP: Duration = Duration::from_millis(100);
    const BEGINNING: Duration = Duration::from_millis(300);
    let from_here = || {
        let all = packets.iter();
        all.filter(|packet| packet.source.ip() == LabSite::Near.host_address())
    };
    let mut streams: Vec<(Duration, Duration)> = Vec::new();
    // Small ones ask for the round-trip time.
    let of_streams = |packet: &&CapturedPacket| {
        packet.transport == TransportHeader::Udp && packet.ip_bytes > 1_000
    };
    for packet in from_here().filter(of_streams) {
        match streams.last_mut() {
            Some((_, end)) if packet.at < *end + GAP => *end = packet.at,
            _ => streams.push((packet.at, packet.at)),
        }
    }
    let longest = streams.into_iter().max_by_key(|(begin, end)| *end - *begin);
    let (begin, end) = longest.expect("a stream was sent");
    assert!(end - begin > BEGINNING, "a stream takes two seconds");
    // Of each connection and way, where what was said so far ends.
    let mut said: HashMap<(SocketAddr, SocketAddr), u32> = HashMap::new();
    let says = |packet: &&CapturedPacket| {
        let TransportHeader::Tcp {
            sequence,
            payload_bytes,
            ..
        } = packet.transport
        else {
            return false;
        };
        let to = sequence.wrapping_add(payload_bytes);
        let said = said
            .entry((packet.source, packet.destination))
            .or_insert(sequence);
        let is_new = payload_bytes > 0 && (to.wrapping_sub(*said) as i32) > 0;
        if is_new {
            *said = to;
        }
        is_new && (begin + BEGINNING..end).contains(&packet.at)
    };
    packets.iter().filter(says).count()
}

/// A client behind NAT, and a DSCP on all packets both ways (except for the server's first messages
/// to a client that it does not know yet).
#[test]
fn client_behind_nat_is_served_with_marked_packets() {
    let name = "client_behind_nat_is_served_with_marked_packets";
    let Some(mut circuit) = TestCircuit::over(SLOW, name) else {
        return;
    };
    circuit.filter("near", MASQUERADE);
    circuit.serve();
    let test = "--direction=down --window=12kB --max-rate=20Mbit --dscp=10";
    let (_, files) = circuit.measure_captured(&format!("{BRIEF} {test}"), 0);
    let log = std::fs::read_to_string(circuit.far_log()).expect("it is there");
    let inside = LabSite::Near.host_address().to_string();
    assert!(
        !log.contains(&inside),
        "the server sees the router's address: {log}"
    );
    let (marked, unmarked) = marked_and_not(&files.wan);
    // Of two connections: what opens them, the greeting, and acknowledgements before the proof.
    assert!(marked > 1_000 && unmarked <= 10, "{marked} and {unmarked}");
}

/// Packets of the test's port with its code point, and those without, which only the server may send over TCP.
fn marked_and_not(file: &Path) -> (u32, u32) {
    const PORT: u16 = 6_349;
    let mut frames = CaptureReader::open(File::open(file).expect("a capture")).expect("a capture");
    let (mut marked, mut unmarked) = (0, 0);
    while let Ok(Some(frame)) = frames.next_frame() {
        let Some(packet) = CapturedPacket::of(&frame) else {
            continue;
        };
        let ports = [packet.source.port(), packet.destination.port()];
        if !ports.contains(&PORT) {
            continue;
        }
        let (bytes, _) = frame.network().expect("it was read");
        match bytes[1] >> 2 {
            10 => marked += 1,
            _ if packet.transport == TransportHeader::Udp || packet.source.port() != PORT => {
                panic!("an unmarked packet from {}", packet.source)
            }
            _ => unmarked += 1,
        }
    }
    (marked, unmarked)
}

/// A link that disappears in mid-test, over IPv6: both ends end, and earlier results are reported.
#[test]
fn broken_link_ends_the_test_and_keeps_results() {
    let name = "broken_link_ends_the_test_and_keeps_results";
    let Some(circuit) = TestCircuit::over(SLOW, name) else {
        return;
    };
    let mut circuit = circuit.by_ipv6();
    circuit.serve();
    let progress = circuit.file("turn-up-client.log");
    let near_end = circuit
        .near_end("run -6 --direction=down")
        .stdout(Stdio::piped())
        .stderr(File::create(&progress).expect("the log can be written"))
        .spawn()
        .expect("the program starts");
    wait_for(&progress, "rate down");
    let emulator = circuit.lab().emulator();
    emulator
        .signal(ProcessSignal::Freeze)
        .expect("the emulator runs");
    let found = TestReport::of(&near_end.wait_with_output().expect("it ends"), 2);
    assert_eq!(found["verdict"], "not-measured");
    assert_eq!(found["path_mtu_bytes"], 1_500);
    found.baseline_rtt_ms(10.0);
    let reason = found.reason();
    assert!(
        reason.contains("the network or the server is down"),
        "{reason}"
    );
    let heard_last = "the test is over: no message from the client arrived";
    wait_for(&circuit.far_log(), heard_last);
}

/// A firewall that passes TCP but drops UDP is named, with the port to open; TCP's results are
/// reported as TCP's, and nothing is claimed about the bottleneck.
#[test]
fn firewall_without_udp_is_named_and_tcp_measured() {
    let name = "firewall_without_udp_is_named_and_tcp_measured";
    let Some(mut circuit) = TestCircuit::over(SLOW, name) else {
        return;
    };
    circuit.filter("far", NO_UDP);
    circuit.serve();
    let test = "run --direction=up --duration=2s --walk=50 --connections=1";
    let found = circuit.measure(test, 2);
    assert_eq!(found["verdict"], "not-measured");
    let reason = found.reason();
    assert!(reason.contains("blocks UDP"), "{reason}");
    assert!(reason.contains("allow UDP port 6349"), "{reason}");
    let errors = found.errors();
    assert!(errors.contains("blocks UDP"), "said at once: {errors}");
    assert_eq!(found["baseline_rtt_by"], "tcp");
    let rtt = found.baseline_rtt_ms(10.0);
    let up = found.way("up");
    for unknown in ["bottleneck_bit_s", "bdp_bytes", "path_mtu_bytes"] {
        assert!(up[unknown].is_null(), "{unknown}: {}", up[unknown]);
    }
    let reached = number(up, "reached_bit_s");
    assert!(reached > 0.0 && reached <= 10.02e6, "{reached}");
    let runs = list(up, "runs");
    let purposes: Vec<&str> = runs.iter().map(|run| text(run, "purpose")).collect();
    assert_eq!(
        purposes,
        ["least RTT", "hosts' own windows", "50 % of reached"]
    );
    let (window, rtt_s) = (number(&runs[2], "window_bytes"), rtt / 1e3);
    let expected = reached * rtt_s / 8.0 / 2.0;
    assert!((window / expected - 1.0).abs() < 0.01);
}

/// Y.1564 and RFC 2544 over a line of 10 Mbit/s: a service above it fails, and no load above it is
/// found to be carried.
#[test]
fn service_beyond_the_line_fails() {
    let name = "service_beyond_the_line_fails";
    let Some(mut circuit) = TestCircuit::over(SLOW, name) else {
        return;
    };
    circuit.serve();
    let test = "service --cir=16Mbit --flr=0.1% --direction=up --step=1s --rest=0";
    let found = circuit.measure(test, 1);
    let steps = list(&found, "steps");
    let names: Vec<&str> = steps.iter().map(|one| text(one, "step")).collect();
    let expected = ["25 % CIR", "50 % CIR", "75 % CIR", "100 % CIR", "overshoot"];
    assert_eq!(names, expected);
    let full = &steps[3];
    assert_eq!(full["verdict"], "failed");
    // 10 Mbit/s of IP packets are 10.12 of frames.
    let received = number(full, "received_bit_s");
    assert!(received <= 10.2e6, "{received}");
    let lost = number(full, "flr");
    assert!(lost > 0.2, "{lost}");
    let trip = number(full, "round_trip_ms");
    assert!(trip >= found.baseline_rtt_ms(10.0), "{trip}");
    assert_eq!(found["criteria"]["policing"], false);
    let trial = "--trial=500ms --duration-sum=500ms --width=5% --search-only --rest=0";
    let test = format!("throughput --frame-sizes=1518 --direction=down {trial}");
    let found = circuit.measure(&test, 0);
    let size = &found["sizes"][0];
    let carried = number(size, "lower_bit_s");
    // Half a second at the line's rate and a queue of 125 kB.
    assert!(carried <= 12.4e6, "{carried}");
    assert!(number(size, "upper_bit_s") > carried);
}
