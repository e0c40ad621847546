//! Second-by-second series of two flows on one path: the evidence behind their shares.
//!
//! The values come from a session's status, and from `ss -ti` for a kernel's connection. They are
//! not smoothed: a rate is the data that arrived in the step, all other values are those at its
//! end.

use std::time::Duration;

use serde::Serialize;
use serde_json::Value;
use tunnel::transport::TransportStatus;

use host::median::median;

/// Duration of a step.
pub(super) const STEP: Duration = Duration::from_secs(1);

/// One step of two flows.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct SeriesStep {
    /// Its end, in seconds since the first flow began.
    pub at_s: f64,
    /// Packets that the queue dropped in it, of whichever flow.
    pub queue_dropped_packets: u64,
    /// Ours and the rival; of two rivals the one that began first.
    pub flows: [FlowStep; 2],
}

/// State of a flow at the end of a step.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct FlowStep {
    /// Rate that arrived in the step.
    pub mbit_s: f64,
    /// Our controller's state, or the name of a kernel's congestion control.
    pub state: String,
    /// Path of its frames: `udp`, `tls`, or `tcp` for a kernel's connection.
    pub path: String,
    /// The most it may have in flight, in packets of 1500 bytes or the kernel's segments.
    pub window_packets: u64,
    /// Path's rate as it estimates it (ours), or its delivery rate (a kernel's).
    pub rate_mbit_s: f64,
    /// Pacing rate: its greatest sending rate.
    pub pacing_mbit_s: f64,
    /// The round-trip time that it sees, and the shortest of it.
    pub rtt_ms: f64,
    /// See above.
    pub rtt_min_ms: f64,
    /// Packets lost since it began; of a kernel's connection those sent again.
    pub lost_packets: u64,
    /// A kernel's slow-start threshold, once it has one.
    pub slow_start_threshold_packets: Option<u64>,
}

impl FlowStep {
    /// State of a session in virtual time.
    pub(super) fn of_session(status: &TransportStatus) -> Self {
        let mbit = |rate: vocab::Bitrate| rate.bits_per_second() as f64 / 1e6;
        let millis = |span: Duration| span.as_secs_f64() * 1e3;
        Self {
            mbit_s: 0.0,
            state: status.congestion.to_owned(),
            path: "udp".to_owned(),
            window_packets: status.window_bytes / status.mtu_bytes.max(1),
            rate_mbit_s: mbit(status.bandwidth),
            pacing_mbit_s: mbit(status.pacing_rate),
            rtt_ms: millis(status.rtt_smoothed),
            rtt_min_ms: millis(status.rtt_minimum.unwrap_or_default()),
            lost_packets: status.lost_packets,
            slow_start_threshold_packets: None,
        }
    }

    /// State of a node's path to its first peer, from `node status --json`.
    pub(super) fn of_node(status: &Value) -> Self {
        let path = &status["peers"][0]["path"];
        let udp = &path["udp"];
        let number = |key: &str| udp[key].as_f64().unwrap_or_default();
        let sent = number("sent_packets");
        Self {
            mbit_s: 0.0,
            state: udp["congestion"].as_str().unwrap_or_default().to_owned(),
            path: path["carries"].as_str().unwrap_or("tls").to_owned(),
            window_packets: (number("window_bytes") / number("mtu_bytes").max(1.0)) as u64,
            rate_mbit_s: number("rate_bit_s") / 1e6,
            pacing_mbit_s: number("pacing_bit_s") / 1e6,
            rtt_ms: number("rtt_ms"),
            rtt_min_ms: number("rtt_min_ms"),
            lost_packets: (sent * number("loss_percent") / 100.0).round() as u64,
            slow_start_threshold_packets: None,
        }
    }

    /// State of a kernel's connection, from `ss -tinH`.
    pub(super) fn of_socket(text: &str, congestion_control: &str) -> Self {
        let words: Vec<&str> = text.split_whitespace().collect();
        // `cwnd:127`, or `pacing_rate 12018224bps`.
        let of = |key: &str| {
            let joined = words.iter().find_map(|word| {
                let rest = word.strip_prefix(key)?;
                rest.strip_prefix(':')
            });
            joined.or_else(|| {
                let at = words.iter().position(|word| *word == key)?;
                words.get(at + 1).copied()
            })
        };
        // Of `rtt:146.893/0.748` the mean, of `retrans:0/123` all of them.
        let number = |word: &str| word.trim_end_matches("bps").parse().unwrap_or(0.0);
        let first = |key: &str| of(key).map(|word| number(word.split('/').next().unwrap_or(word)));
        let resent = of("retrans").and_then(|word| word.split('/').nth(1));
        Self {
            mbit_s: 0.0,
            state: congestion_control.to_owned(),
            path: "tcp".to_owned(),
            window_packets: first("cwnd").unwrap_or_default() as u64,
            rate_mbit_s: first("delivery_rate").unwrap_or_default() / 1e6,
            pacing_mbit_s: first("pacing_rate").unwrap_or_default() / 1e6,
            rtt_ms: first("rtt").unwrap_or_default(),
            rtt_min_ms: first("minrtt").unwrap_or_default(),
            lost_packets: resent.map(number).unwrap_or_default() as u64,
            slow_start_threshold_packets: first("ssthresh").map(|packets| packets as u64),
        }
    }
}

/// Two flows on one path.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct FlowPair {
    /// Bytes of each in the time that counts.
    pub bytes: [u64; 2],
    /// Steps of both flows, from the first flow's beginning.
    pub steps: Vec<SeriesStep>,
    #[serde(skip)]
    before: [u64; 2],
    #[serde(skip)]
    dropped_before: u64,
}

impl FlowPair {
    /// Adds the step since the last one: `received` and `dropped` are counted from the beginning.
    pub(super) fn add(
        &mut self,
        at: Duration,
        received: [u64; 2],
        dropped: u64,
        mut flows: [FlowStep; 2],
    ) {
        let last = self.steps.last().map_or(0.0, |step| step.at_s);
        let at_s = at.as_secs_f64();
        let span_s = (at_s - last).max(1e-6);
        for ((flow, now), before) in flows.iter_mut().zip(received).zip(self.before) {
            flow.mbit_s = now.saturating_sub(before) as f64 * 8.0 / 1e6 / span_s;
        }
        self.steps.push(SeriesStep {
            at_s,
            queue_dropped_packets: dropped.saturating_sub(self.dropped_before),
            flows,
        });
        self.before = received;
        self.dropped_before = dropped;
    }

    /// The steps from this moment on.
    fn counted(&self, from: Duration) -> &[SeriesStep] {
        let from_s = from.as_secs_f64();
        let begin = self.steps.partition_point(|step| step.at_s <= from_s);
        &self.steps[begin..]
    }

    /// The median over these steps of something of one flow.
    pub(super) fn median_of(
        &self,
        from: Duration,
        flow: usize,
        figure: impl Fn(&FlowStep) -> f64,
    ) -> f64 {
        let steps = self.counted(from).iter();
        median(steps.map(|step| figure(&step.flows[flow]))).unwrap_or_default()
    }

    /// Packets that one flow lost in these steps.
    pub(super) fn lost(&self, from: Duration, flow: usize) -> u64 {
        match self.counted(from) {
            [first, .., last] => {
                let [first, last] = [first, last].map(|step| step.flows[flow].lost_packets);
                last.saturating_sub(first)
            }
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const SOCKET: &str = "ESTAB 0 611056 198.18.2.1:5203 198.18.1.1:42824\n\t cubic \
        wscale:10,10 rto:348 rtt:146.893/0.748 mss:1448 cwnd:127 ssthresh:118 segs_out:22691 \
        send 10015236bps pacing_rate 12018224bps delivery_rate 8915840bps unacked:127 \
        retrans:0/123 minrtt:100.645 snd_wnd:1250304";

    #[test]
    fn a_sockets_line_is_read() {
        let flow = FlowStep::of_socket(SOCKET, "cubic");
        let expected = FlowStep {
            mbit_s: 0.0,
            state: "cubic".to_owned(),
            path: "tcp".to_owned(),
            window_packets: 127,
            rate_mbit_s: 8.915_84,
            pacing_mbit_s: 12.018_224,
            rtt_ms: 146.893,
            rtt_min_ms: 100.645,
            lost_packets: 123,
            slow_start_threshold_packets: Some(118),
        };
        assert_eq!(flow, expected);
        let fresh = FlowStep::of_socket("ESTAB 0 0 a b bbr cwnd:10", "bbr");
        assert_eq!((fresh.window_packets, fresh.lost_packets), (10, 0));
        assert_eq!(fresh.slow_start_threshold_packets, None);
    }

    #[test]
    fn a_nodes_status_is_read() {
        let status = json!({"peers": [{"path": {"carries": "udp", "udp": {
            "congestion": "cruise", "sent_packets": 68_423, "loss_percent": 0.919_281,
            "mtu_bytes": 1500, "window_bytes": 235_211, "rate_bit_s": 12_028_479,
            "pacing_bit_s": 10_121_965, "rtt_ms": 188.1, "rtt_min_ms": 100.7,
        }}}]});
        let flow = FlowStep::of_node(&status);
        assert_eq!((&flow.state[..], &flow.path[..]), ("cruise", "udp"));
        assert_eq!((flow.window_packets, flow.lost_packets), (156, 629));
        assert!((flow.rate_mbit_s - 12.028).abs() < 0.001);
    }

    #[test]
    fn steps_tell_what_came_since_the_one_before() {
        let flow = |lost_packets, window_packets| FlowStep {
            lost_packets,
            window_packets,
            ..FlowStep::default()
        };
        let mut run = FlowPair::default();
        for second in 1..=5_u64 {
            let received = [second * 1_000_000, second * 500_000];
            let flows = [flow(0, 10), flow(second * 3, 100 + second)];
            run.add(Duration::from_secs(second), received, second * 7, flows);
        }
        assert_eq!(run.steps[4].queue_dropped_packets, 7);
        assert!((run.steps[4].flows[0].mbit_s - 8.0).abs() < 1e-9);
        assert!((run.steps[4].flows[1].mbit_s - 4.0).abs() < 1e-9);
        let from = Duration::from_secs(2);
        assert_eq!(run.lost(from, 1), 6);
        let window = run.median_of(from, 1, |flow| flow.window_packets as f64);
        assert_eq!(window, 104.0);
    }
}
