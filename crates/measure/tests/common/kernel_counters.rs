//! Counters of a simulated connection, as the kernel gives them.

use measure::tcp_info::TcpInfo;
use tcp::ConnectionInfo;

/// Counters as the kernel gives them.
pub(crate) fn kernel_counters(info: &ConnectionInfo) -> TcpInfo {
    TcpInfo {
        segment_bytes: info.segment_bytes,
        rtt: info.rtt,
        rtt_variance: info.rtt_variance,
        rtt_min: info.rtt_min,
        congestion_window: info.congestion_window,
        slow_start_threshold: info.slow_start_threshold,
        unacknowledged: info.unacknowledged,
        segments_retransmitted: info.segments_retransmitted as u32,
        bytes_acknowledged: info.bytes_acknowledged,
        bytes_received: info.bytes_received,
        bytes_sent: info.bytes_sent,
        bytes_retransmitted: info.bytes_retransmitted,
        busy: info.busy,
        receive_window_limited: info.receive_window_limited,
        send_buffer_limited: info.send_buffer_limited,
        reorderings: info.reorderings,
        peer_window: Some(info.peer_window),
        ..TcpInfo::default()
    }
}
