//! UDP streams by iperf3's protocol: one session for each.
//!
//! Up, the packets leave here at their times and the server counts the arrivals. Down, it sends
//! them at the requested rate, and each arrival is recorded here with its time. A server that
//! receives nothing waits in vain for the first packet; the session is then closed, which it
//! notices.

use std::io::ErrorKind;
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use measure::iperf3::{
    ConnectionCount, HELLO, ServerReport, SessionOutput, StampedHeader, TestOrder, TestProtocol,
};
use measure::procedure::{ArrivalLog, CountedStream, StreamPlan};
use measure::session::{describe_stream, udp_headers};
use measure::wire::{DatagramArrival, TestDirection};
use vocab::{Bitrate, ByteCount};

use super::{ControlConnection, LOOK_EVERY, OneEndedTest, REST};
use crate::greeting::open_udp;
use crate::streams::{pace, put};
use host::tester_sockets::{IncomingDatagrams, SocketDropCounter, TesterClock, is_icmp_error};

/// Time limit for the server's answer to the first packet, in TCP round trips and at least; and the
/// number of attempts, because either of the two may be lost.
const HELLO_ROUND_TRIPS: u32 = 4;
const HELLO_MIN: Duration = Duration::from_millis(500);
const HELLO_TRIES: u32 = 3;
/// ... where UDP has come through before: only loss can be in the way.
const HELLO_TRIES_LATER: u32 = 6;
/// Time after the last packet of an upload stream until the server is told that it is over: that
/// message is behind the packets in the path's queue. It is longer where the queue was filled on
/// purpose.
const DRAIN: Duration = Duration::from_millis(200);
const DRAIN_OF_OVERLOAD: Duration = Duration::from_millis(500);
/// Time without arrivals after which a download stream that was ended is over.
const QUIET: Duration = Duration::from_millis(150);
/// ... and after this long whatever comes: the deepest queues hold less, and a server need not stop.
const LATE_MAX: Duration = Duration::from_secs(3);
/// Time by which the server is told that the test is longer than the stream: it goes by its own
/// clock.
const SPARE: Duration = Duration::from_secs(2);

impl OneEndedTest<'_> {
    /// Sends a stream, and returns its counts; [`None`] where no UDP gets through.
    pub(super) fn stream(
        &mut self,
        direction: TestDirection,
        plan: StreamPlan,
    ) -> Result<Option<CountedStream>> {
        let text = describe_stream(direction, &plan);
        self.progress.step(self.turn_up.progress(), &text);
        self.pause(match self.turn_up.is_overloading() {
            true => REST + self.options.rest,
            false => REST,
        })?;
        let tries = match self.has_streamed {
            true => HELLO_TRIES_LATER,
            false => HELLO_TRIES,
        };
        for _ in 0..tries {
            let mut control = self.begin_session(stream_order(self, direction, plan))?.0;
            control.wait_for(&SessionOutput::Open, &|| self.check())?;
            let udp = open_udp(self.options, self.server, self.local.ip())?;
            if self.greet(&udp, &mut control)? {
                self.has_streamed = true;
                return self.streamed(direction, plan, &udp, control).map(Some);
            }
            drop(control);
            self.pause(REST)?;
        }
        Ok(None)
    }

    /// Shows the server our address; returns whether it has answered, or already sends. It stops
    /// waiting for a server that closes the connection or refuses.
    fn greet(&self, udp: &UdpSocket, control: &mut ControlConnection) -> Result<bool> {
        // Only once: a second one would be taken for a packet of the stream.
        put(udp, None, &HELLO).context("sending over UDP")?;
        udp.set_read_timeout(Some(LOOK_EVERY))?;
        let round_trip = self.turn_up.round_trip().unwrap_or_default();
        let until = Instant::now() + (round_trip * HELLO_ROUND_TRIPS).max(HELLO_MIN);
        while Instant::now() < until {
            self.check()?;
            // Left where it is: it may be the stream's first packet.
            match udp.peek(&mut [0; 4]) {
                Ok(_) => return Ok(true),
                Err(error) if is_to_wait_for(&error) => {}
                Err(error) => return Err(error).context("receiving over UDP"),
            }
            control.listen()?;
        }
        Ok(false)
    }

    fn streamed(
        &self,
        direction: TestDirection,
        plan: StreamPlan,
        udp: &UdpSocket,
        control: ControlConnection,
    ) -> Result<CountedStream> {
        let no_room = SocketDropCounter::begin(udp);
        let (sent, report, came) = match direction {
            TestDirection::Up => self.stream_up(plan, udp, control)?,
            TestDirection::Down => self.stream_down(plan, udp, control)?,
        };
        let theirs = report.streams.first().context("it counted no stream")?;
        let payload = u64::from(self.payload(plan)).max(1);
        Ok(match direction {
            TestDirection::Up => CountedStream {
                plan,
                sent: sent.packets,
                span: sent.span,
                received: (theirs.bytes.bytes() / payload).min(sent.packets),
                jitter: Some(theirs.jitter),
                arrivals: Vec::new(),
                no_room: None,
            },
            TestDirection::Down => CountedStream {
                plan,
                sent: theirs.packets,
                span: Duration::ZERO,
                received: came.packets.min(theirs.packets),
                jitter: None,
                arrivals: came.arrivals,
                // What a path brings twice finds no room either.
                no_room: Some(
                    no_room
                        .until_now(udp)
                        .min(theirs.packets.saturating_sub(came.packets)),
                ),
            },
        })
    }

    fn stream_up(
        &self,
        plan: StreamPlan,
        udp: &UdpSocket,
        mut control: ControlConnection,
    ) -> Result<(SentStream, ServerReport, ArrivedPackets)> {
        control.wait_for(&SessionOutput::Start, &|| self.check())?;
        let began = Instant::now();
        let (length, mut bytes) = (usize::from(self.payload(plan)), Vec::new());
        let mut stamps: Option<(u64, u64)> = None;
        // Nobody counts any more: what is sent now would only be in the way of others.
        let is_over = || self.check().is_err() || control.is_closed();
        let packets = pace(plan, self.clock, &is_over, &mut |number, stamp| {
            stamps = Some((stamps.map_or(stamp, |(first, _)| first), stamp));
            let head = StampedHeader {
                at: self.clock.now().since(vocab::Time::ZERO),
                number: number + 1,
            };
            head.emit(length, &mut bytes);
            put(udp, None, &bytes)
        })
        .context("sending the stream")?;
        self.pause(match self.turn_up.is_overloading() {
            true => DRAIN_OF_OVERLOAD,
            false => DRAIN,
        })?;
        let counted = ConnectionCount {
            bytes: ByteCount::new(packets * length as u64),
            span: began.elapsed(),
            packets,
            lost: 0,
        };
        let report = control.finish(&[], TestDirection::Up, vec![counted], &|| self.check())?;
        let span = stamps.map_or(0, |(first, last)| last.saturating_sub(first));
        let sent = SentStream {
            packets,
            span: Duration::from_nanos(span),
        };
        Ok((sent, report, ArrivedPackets::default()))
    }

    fn stream_down(
        &self,
        plan: StreamPlan,
        udp: &UdpSocket,
        mut control: ControlConnection,
    ) -> Result<(SentStream, ServerReport, ArrivedPackets)> {
        let is_over = AtomicBool::new(false);
        let clock = self.clock;
        let check = || self.check();
        let (report, came) = std::thread::scope(|scope| {
            let receiving = scope.spawn(|| receive(udp, clock, &is_over));
            let ridden = control
                .wait_for(&SessionOutput::Start, &check)
                .and_then(|()| self.pause(plan.duration))
                .and_then(|()| {
                    control.finish(
                        &[],
                        TestDirection::Down,
                        vec![ConnectionCount::default()],
                        &check,
                    )
                });
            is_over.store(true, Ordering::Relaxed);
            let came = receiving
                .join()
                .map_err(|_| anyhow!("receiving the stream failed"))?;
            Ok::<_, anyhow::Error>((ridden?, came?))
        })?;
        Ok((SentStream::default(), report, came))
    }

    /// Bytes above UDP of a stream's packets.
    fn payload(&self, plan: StreamPlan) -> u16 {
        let headers = udp_headers(self.server.ip());
        plan.ip_bytes.saturating_sub(headers)
    }
}

/// Packets that this host sent.
#[derive(Clone, Copy, Debug, Default)]
struct SentStream {
    packets: u64,
    /// Time from the first packet to the last.
    span: Duration,
}

fn stream_order(test: &OneEndedTest, direction: TestDirection, plan: StreamPlan) -> TestOrder {
    let payload_bytes = test.payload(plan);
    // iperf3's rate is of what is above UDP.
    let bits = u128::from(plan.rate.bits_per_second()) * u128::from(payload_bytes);
    let bits = bits / u128::from(plan.ip_bytes.max(1));
    TestOrder {
        carried: TestProtocol::Udp {
            payload_bytes,
            rate: Bitrate::from_bits_per_second(u64::try_from(bits).unwrap_or(u64::MAX)),
        },
        direction,
        connections: 1,
        window: None,
        duration: plan.duration + SPARE,
        congestion_control: String::new(),
        dscp: test.options.dscp,
    }
}

/// Packets of a stream that arrived.
#[derive(Debug, Default)]
struct ArrivedPackets {
    /// All of it.
    packets: u64,
    /// Each of them, as many as are kept.
    arrivals: Vec<DatagramArrival>,
}

/// Records arrivals until the stream is over and no more packets arrive, or [`LATE_MAX`] has
/// passed.
fn receive(udp: &UdpSocket, clock: TesterClock, is_over: &AtomicBool) -> Result<ArrivedPackets> {
    let mut log = ArrivalLog::new(clock.now());
    let mut incoming = IncomingDatagrams::new();
    // The sender's clock when it sent the first of those that came.
    let mut began: Option<Duration> = None;
    let mut packets = 0;
    let (mut last, mut ended) = (Instant::now(), None);
    udp.set_read_timeout(Some(LOOK_EVERY))?;
    loop {
        if is_over.load(Ordering::Relaxed) {
            let ended: Instant = *ended.get_or_insert_with(Instant::now);
            if last.elapsed() >= QUIET || ended.elapsed() >= LATE_MAX {
                break;
            }
        }
        let before = packets;
        incoming
            .receive(udp, clock, |at, _, bytes| {
                if let Some(head) = StampedHeader::parse(bytes) {
                    let began = *began.get_or_insert(head.at);
                    let sent = head.at.saturating_sub(began);
                    log.arrived(at, head.number - 1, sent.as_nanos() as u64);
                    packets += 1;
                }
            })
            .context("receiving over UDP")?;
        if packets > before {
            last = Instant::now();
        }
    }
    Ok(ArrivedPackets {
        packets,
        arrivals: log.into_arrivals(),
    })
}

/// Tells whether to keep waiting: nothing has arrived yet, or the port is reported closed, in which
/// case the server's message decides.
fn is_to_wait_for(error: &std::io::Error) -> bool {
    let is_none = matches!(
        error.kind(),
        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
    );
    is_none || is_icmp_error(error)
}
