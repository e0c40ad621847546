//! Numbered UDP packets, sent as a burst and then at an even pace, and their arrivals.

use std::io::ErrorKind;
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};

use host::wait;

/// An IPv4 header without options and a UDP header.
pub(super) const HEADERS: usize = 28;

/// Time that a receiver waits in the kernel before it checks whether it is done.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(20);

/// Packets to send.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct PacketLoad {
    /// Length from the first byte of the IP header.
    pub(super) ip_length: usize,
    /// At once, at the beginning.
    pub(super) burst: u64,
    /// Number of paced packets after it.
    pub(super) paced: u64,
    /// Rate of the paced packets.
    pub(super) per_second: f64,
    /// Time without another packet after which the load is over, once the last was sent.
    pub(super) patience: Duration,
}

/// Outcome of the load.
#[derive(Clone, Debug)]
pub(super) struct TrafficOutcome {
    /// Time to send the burst.
    pub(super) burst_took: Duration,
    /// Time from the first packet to the last.
    pub(super) sending_took: Duration,
    /// The most time for each packet before it that any packet after the first was sent at.
    pub(super) slowest_pace: Duration,
    /// Numbers in the order of their arrival.
    pub(super) arrived: Vec<u64>,
}

/// Sends a load and waits until no more packets arrive.
pub(super) fn run(
    sender: &UdpSocket,
    receiver: &UdpSocket,
    load: &PacketLoad,
) -> Result<TrafficOutcome> {
    receiver.set_read_timeout(Some(LOOK_AGAIN_AFTER))?;
    let sent_all = AtomicBool::new(false);
    thread::scope(|scope| {
        let receiving = scope.spawn(|| receive(receiver, load, &sent_all));
        let sent = send(sender, load);
        sent_all.store(true, Ordering::Release);
        let arrived = receiving
            .join()
            .unwrap_or_else(|_| Err(anyhow!("the receiving thread panicked")))?;
        let SendTimes {
            burst_took,
            sending_took,
            slowest_pace,
        } = sent?;
        Ok(TrafficOutcome {
            burst_took,
            sending_took,
            slowest_pace,
            arrived,
        })
    })
}

struct SendTimes {
    burst_took: Duration,
    sending_took: Duration,
    slowest_pace: Duration,
}

fn send(socket: &UdpSocket, load: &PacketLoad) -> Result<SendTimes> {
    let mut payload = vec![0; load.ip_length - HEADERS];
    let mut send = |number: u64| {
        payload[..8].copy_from_slice(&number.to_be_bytes());
        socket.send(&payload).context("sending a packet")
    };
    let mut slowest_pace = Duration::ZERO;
    let start = Instant::now();
    let mut look = |number: u64| {
        let pace = start.elapsed().as_nanos() / u128::from(number.max(1));
        let pace = Duration::from_nanos(u64::try_from(pace).unwrap_or(u64::MAX));
        slowest_pace = slowest_pace.max(pace);
    };
    for number in 0..load.burst {
        send(number)?;
        look(number);
    }
    let burst_took = start.elapsed();
    for number in 0..load.paced {
        wait::not_interrupted()?;
        let due = burst_took + Duration::from_secs_f64((number + 1) as f64 / load.per_second);
        if let Some(left) = due.checked_sub(start.elapsed()) {
            thread::sleep(left);
        }
        send(load.burst + number)?;
        look(load.burst + number);
    }
    Ok(SendTimes {
        burst_took,
        sending_took: start.elapsed(),
        slowest_pace,
    })
}

fn receive(socket: &UdpSocket, load: &PacketLoad, sent_all: &AtomicBool) -> Result<Vec<u64>> {
    let mut buffer = vec![0; load.ip_length];
    let mut arrived = Vec::new();
    let mut quiet_since = Instant::now();
    loop {
        // Before looking for a packet, so that nothing which was sent is left unread.
        let was_sent = sent_all.load(Ordering::Acquire);
        match socket.recv(&mut buffer) {
            Ok(length) => {
                arrived.push(number(&buffer[..length]).context("a packet of someone else's")?);
                quiet_since = Instant::now();
            }
            Err(error) if is_timeout(error.kind()) => {
                if !was_sent {
                    quiet_since = Instant::now();
                } else if quiet_since.elapsed() >= load.patience {
                    return Ok(arrived);
                }
            }
            Err(error) => return Err(error).context("receiving a packet"),
        }
        if arrived.len() as u64 == load.burst + load.paced {
            return Ok(arrived);
        }
        wait::not_interrupted()?;
    }
}

fn is_timeout(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
    )
}

/// The number at the head of a payload.
pub(super) fn number(payload: &[u8]) -> Option<u64> {
    let bytes = payload.get(..8)?.try_into().ok()?;
    Some(u64::from_be_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_is_sent_is_seen_in_order() {
        let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        sender.connect(receiver.local_addr().unwrap()).unwrap();
        let load = PacketLoad {
            ip_length: 100,
            burst: 20,
            paced: 30,
            per_second: 5_000.0,
            patience: Duration::from_secs(20),
        };
        let outcome = run(&sender, &receiver, &load).unwrap();
        assert_eq!(outcome.arrived, (0..50).collect::<Vec<_>>());
        assert!(outcome.burst_took <= outcome.sending_took);
        assert!(outcome.sending_took >= Duration::from_millis(6));
        assert!(outcome.slowest_pace >= outcome.sending_took / 50);
    }

    #[test]
    fn a_short_payload_has_no_number() {
        assert_eq!(number(&[0, 0, 0, 0, 0, 0, 1, 2, 9]), Some(258));
        assert_eq!(number(&[1; 7]), None);
    }
}
