//! The messages on the control connection, each behind its length.
//!
//! ```text
//!  length: 4 bytes   kind: 1 byte   fields, by kind
//! ```
//! Integers are big-endian or of variable length (`vocab::ByteReader`). A length above
//! [`LONGEST_MESSAGE`], an unknown kind, a field out of its range and bytes that are left over are all
//! faults of the other end, after which the connection is closed.

use std::time::Duration;

use thiserror::Error;
use vocab::{Bitrate, ByteCount, ByteReader, ByteWriter, TruncatedInput};

use super::key::{KeyProof, SessionNonce};
use crate::tcp_info::TcpInfo;

/// Version of this program's protocol, and so far the only one.
pub const VERSION: u16 = 1;
/// The longest message: room for a few thousand arrivals, and little to hold for a stranger.
pub const LONGEST_MESSAGE: usize = 64 * 1024;

/// First bytes of a greeting, by which a peer that speaks another protocol is recognised.
const MAGIC: [u8; 4] = *b"TLTU";
/// The longest text in a message.
const LONGEST_TEXT: usize = 512;

/// Why bytes were not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum WireError {
    /// The other end speaks something else.
    #[error("the other end does not speak the protocol of turn-up tests")]
    Foreign,
    /// The message is longer than any valid one.
    #[error("a message of {0} bytes; the longest has {LONGEST_MESSAGE}")]
    TooLong(u64),
    /// Its fields are cut off, out of range, or followed by more.
    #[error("a message that is not well formed")]
    Malformed,
}

impl From<TruncatedInput> for WireError {
    fn from(_: TruncatedInput) -> Self {
        WireError::Malformed
    }
}

/// Error of [`next_frame`].
pub type FrameError = WireError;

/// Direction of test traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TestDirection {
    /// From the client to the server.
    Up,
    /// From the server to the client.
    Down,
}

impl TestDirection {
    /// Both, in the order in which they are tested.
    pub const BOTH: [TestDirection; 2] = [TestDirection::Up, TestDirection::Down];

    /// Its name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            TestDirection::Up => "up",
            TestDirection::Down => "down",
        }
    }
}

/// Why a server does not serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerRefusal {
    /// No common version.
    Version,
    /// The proof was wrong: not the same key.
    Key,
    /// Another test is running.
    Busy,
    /// Its time is up.
    TimeUp,
    /// The request exceeds the server's limits.
    Limit,
    /// The client did not keep to the protocol.
    Protocol,
}

impl ServerRefusal {
    const ALL: [ServerRefusal; 6] = [
        ServerRefusal::Version,
        ServerRefusal::Key,
        ServerRefusal::Busy,
        ServerRefusal::TimeUp,
        ServerRefusal::Limit,
        ServerRefusal::Protocol,
    ];
}

/// Limits that a server sets for a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerLimits {
    /// The rate of a stream.
    pub rate: Bitrate,
    /// Greatest duration of one stream or run.
    pub order: Duration,
    /// Greatest duration of the whole session.
    pub session: Duration,
    /// Connections of a run, in each direction.
    pub connections: u16,
}

impl ServerLimits {
    /// Text about an option that asks for streams or runs of this length, where the server allows
    /// less.
    #[must_use]
    pub fn shortens(&self, option: &str, asked: Duration) -> Option<String> {
        (self.order < asked).then(|| {
            format!(
                "{option} {} s was asked for, and the server gives {} s at most (its --max-duration): that is \
                 what was done",
                asked.as_secs_f64(),
                self.order.as_secs_f64()
            )
        })
    }
}

/// A further connection for a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JoinMessage {
    /// The session.
    pub session: u64,
    /// The run.
    pub order: u32,
    /// Its number in the run: those up first, from 0.
    pub connection: u16,
    /// `SessionKey::join`.
    pub proof: KeyProof,
}

/// A stream of datagrams at a constant rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamOrder {
    /// Its number; each is used once.
    pub order: u32,
    /// The direction.
    pub direction: TestDirection,
    /// Rate of IP packets.
    pub rate: Bitrate,
    /// Duration.
    pub duration: Duration,
    /// Bytes of each datagram above UDP.
    pub payload_bytes: u16,
}

/// A run of TCP connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunOrder {
    /// Its number; each is used once.
    pub order: u32,
    /// Connections towards the server, and towards the client.
    pub connections: [u16; 2],
    /// The window that each connection's receiver offers, and its sender's buffer takes, for each
    /// direction; zero leaves it to the kernel.
    pub windows: [ByteCount; 2],
    /// Time that data is sent.
    pub duration: Duration,
    /// Congestion control of the senders; empty for the system's own.
    pub congestion_control: String,
}

/// The arrival of a datagram of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatagramArrival {
    /// The datagram's number.
    pub number: u64,
    /// Time of sending, in nanoseconds since the sender began.
    pub sent_ns: u64,
    /// Time of arrival, in nanoseconds since the receiver began to listen.
    pub arrived_ns: u64,
}

/// Counters of the sender's kernel for a connection at a moment of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunSample {
    /// The connection's number in the run.
    pub connection: u16,
    /// Time since the run began, on the sender's clock.
    pub at: Duration,
    /// The counters.
    pub info: TcpInfo,
}

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControlMessage {
    /// Server: the versions it speaks, and its nonce; the first on every connection.
    Hello {
        /// The oldest version.
        oldest: u16,
        /// The newest version.
        newest: u16,
        /// Fresh.
        nonce: SessionNonce,
    },
    /// Client: the version it chose, its nonce, and that it holds the key.
    Authenticate {
        /// One that both speak.
        version: u16,
        /// The code point (RFC 2474) that the server's packets are to carry.
        dscp: u8,
        /// Fresh.
        nonce: SessionNonce,
        /// `SharedKey::prove` as the client.
        proof: KeyProof,
    },
    /// Client: this connection is one of a run.
    Join(JoinMessage),
    /// Server: proof that it holds the key, too, and its limits.
    Welcome {
        /// `SharedKey::prove` as the server.
        proof: KeyProof,
        /// Identifier that datagrams and further connections carry.
        session: u64,
        /// Limits of the server.
        limits: ServerLimits,
        /// Remarks about this host that a person should read before the test.
        remarks: String,
    },
    /// Server: no.
    Refused {
        /// Why.
        reason: ServerRefusal,
        /// Time after which another attempt makes sense.
        retry: Duration,
        /// Text for a person.
        text: String,
    },
    /// Client: a stream; the server listens, or sends.
    Stream(StreamOrder),
    /// Client: a run; connections follow.
    Run(RunOrder),
    /// Server: it is prepared for this order.
    Ready {
        /// The order.
        order: u32,
    },
    /// Sender of a stream: the stream is over, and so many datagrams were sent.
    StreamSent {
        /// The order.
        order: u32,
        /// Datagrams.
        datagrams: u64,
    },
    /// Server: arrivals of an upload stream, in their order; an empty list ends them.
    Arrivals {
        /// The order.
        order: u32,
        /// A part of the arrivals.
        arrivals: Vec<DatagramArrival>,
    },
    /// Server: datagrams of a stream up that came to its host and found no room in its socket; before the list
    /// that ends the arrivals, and only where there are any.
    NoRoom {
        /// The order.
        order: u32,
        /// Datagrams.
        datagrams: u64,
    },
    /// The sender of a run: samples of its connections.
    Samples {
        /// The order.
        order: u32,
        /// A part of the samples.
        samples: Vec<RunSample>,
    },
    /// Server: its end of a run is over; names its sender's congestion control.
    RunEnded {
        /// The order.
        order: u32,
        /// Congestion control, by the kernel's name.
        congestion_control: String,
        /// The share of its processors' time that the server's host spent, in parts of a thousand.
        busy_permille: u16,
    },
    /// Either end: it is there. Without one for a few seconds the other end stops to send.
    Alive,
    /// Client: give up this order.
    Stop {
        /// The order.
        order: u32,
    },
    /// Server: this order failed, for this reason.
    Failed {
        /// The order.
        order: u32,
        /// Text for a person.
        text: String,
    },
    /// Client: done.
    Bye,
}

/// Encodes a message with its length.
///
/// # Panics
/// Panics when it is longer than [`LONGEST_MESSAGE`]; the caller splits lists.
#[must_use]
pub fn frame(message: &ControlMessage) -> Vec<u8> {
    let mut body = ByteWriter::new();
    message.emit(&mut body);
    assert!(
        body.len() <= LONGEST_MESSAGE,
        "lists are cut before they are sent"
    );
    let mut framed = ByteWriter::with_capacity(4 + body.len());
    framed.u32(body.len() as u32).bytes(body.as_slice());
    framed.finish().to_vec()
}

/// The first message in the received bytes, and its length; [`None`] while it is incomplete.
///
/// # Errors
/// Fails when the bytes are not a message.
pub fn next_frame(bytes: &[u8]) -> Result<Option<(ControlMessage, usize)>, FrameError> {
    let mut reader = ByteReader::new(bytes);
    let Ok(length) = reader.u32() else {
        return Ok(None);
    };
    if length as usize > LONGEST_MESSAGE {
        return Err(WireError::TooLong(u64::from(length)));
    }
    let Ok(body) = reader.bytes(length as usize) else {
        return Ok(None);
    };
    Ok(Some((ControlMessage::parse(body)?, 4 + length as usize)))
}

const HELLO: u8 = 1;
const AUTHENTICATE: u8 = 2;
const JOIN: u8 = 3;
const WELCOME: u8 = 4;
const REFUSED: u8 = 5;
const STREAM: u8 = 6;
const RUN: u8 = 7;
const READY: u8 = 8;
const STREAM_SENT: u8 = 9;
const ARRIVALS: u8 = 10;
const SAMPLES: u8 = 11;
const RUN_ENDED: u8 = 12;
const ALIVE: u8 = 13;
const STOP: u8 = 14;
const FAILED: u8 = 15;
const BYE: u8 = 16;
const NO_ROOM: u8 = 17;

impl ControlMessage {
    /// Parses a message without its length.
    ///
    /// # Errors
    /// Fails when the bytes are not a message.
    pub fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        let mut reader = ByteReader::new(bytes);
        let message = Self::fields(reader.u8()?, &mut reader)?;
        if reader.is_empty() {
            Ok(message)
        } else {
            Err(WireError::Malformed)
        }
    }

    fn fields(kind: u8, reader: &mut ByteReader<'_>) -> Result<Self, WireError> {
        Ok(match kind {
            HELLO => {
                if reader.array()? != MAGIC {
                    return Err(WireError::Foreign);
                }
                ControlMessage::Hello {
                    oldest: reader.u16()?,
                    newest: reader.u16()?,
                    nonce: reader.array()?,
                }
            }
            AUTHENTICATE => ControlMessage::Authenticate {
                version: reader.u16()?,
                dscp: reader.u8()?,
                nonce: reader.array()?,
                proof: reader.array()?,
            },
            JOIN => ControlMessage::Join(JoinMessage {
                session: reader.u64()?,
                order: reader.u32()?,
                connection: reader.u16()?,
                proof: reader.array()?,
            }),
            WELCOME => ControlMessage::Welcome {
                proof: reader.array()?,
                session: reader.u64()?,
                limits: ServerLimits {
                    rate: rate(reader)?,
                    order: span(reader)?,
                    session: span(reader)?,
                    connections: reader.u16()?,
                },
                remarks: text(reader)?,
            },
            REFUSED => ControlMessage::Refused {
                reason: *ServerRefusal::ALL
                    .get(usize::from(reader.u8()?))
                    .ok_or(WireError::Malformed)?,
                retry: span(reader)?,
                text: text(reader)?,
            },
            STREAM => ControlMessage::Stream(StreamOrder {
                order: reader.u32()?,
                direction: match reader.u8()? {
                    0 => TestDirection::Up,
                    1 => TestDirection::Down,
                    _ => return Err(WireError::Malformed),
                },
                rate: rate(reader)?,
                duration: span(reader)?,
                payload_bytes: reader.u16()?,
            }),
            RUN => ControlMessage::Run(RunOrder {
                order: reader.u32()?,
                connections: [reader.u16()?, reader.u16()?],
                windows: [count(reader)?, count(reader)?],
                duration: span(reader)?,
                congestion_control: text(reader)?,
            }),
            READY => ControlMessage::Ready {
                order: reader.u32()?,
            },
            STREAM_SENT => ControlMessage::StreamSent {
                order: reader.u32()?,
                datagrams: reader.varint()?,
            },
            ARRIVALS => ControlMessage::Arrivals {
                order: reader.u32()?,
                arrivals: arrivals(reader)?,
            },
            NO_ROOM => ControlMessage::NoRoom {
                order: reader.u32()?,
                datagrams: reader.varint()?,
            },
            SAMPLES => ControlMessage::Samples {
                order: reader.u32()?,
                samples: samples(reader)?,
            },
            RUN_ENDED => ControlMessage::RunEnded {
                order: reader.u32()?,
                congestion_control: text(reader)?,
                busy_permille: reader.u16()?,
            },
            ALIVE => ControlMessage::Alive,
            STOP => ControlMessage::Stop {
                order: reader.u32()?,
            },
            FAILED => ControlMessage::Failed {
                order: reader.u32()?,
                text: text(reader)?,
            },
            BYE => ControlMessage::Bye,
            _ => return Err(WireError::Malformed),
        })
    }

    /// Writes the message without its length.
    pub fn emit(&self, out: &mut ByteWriter) {
        match self {
            ControlMessage::Hello {
                oldest,
                newest,
                nonce,
            } => {
                out.u8(HELLO)
                    .bytes(&MAGIC)
                    .u16(*oldest)
                    .u16(*newest)
                    .bytes(nonce);
            }
            ControlMessage::Authenticate {
                version,
                dscp,
                nonce,
                proof,
            } => {
                out.u8(AUTHENTICATE)
                    .u16(*version)
                    .u8(*dscp)
                    .bytes(nonce)
                    .bytes(proof);
            }
            ControlMessage::Join(joining) => {
                out.u8(JOIN)
                    .u64(joining.session)
                    .u32(joining.order)
                    .u16(joining.connection)
                    .bytes(&joining.proof);
            }
            ControlMessage::Welcome {
                proof,
                session,
                limits,
                remarks,
            } => {
                out.u8(WELCOME).bytes(proof).u64(*session);
                put(out, limits.rate.bits_per_second());
                put_span(out, limits.order);
                put_span(out, limits.session);
                out.u16(limits.connections);
                put_text(out, remarks);
            }
            ControlMessage::Refused {
                reason,
                retry,
                text,
            } => {
                let number = ServerRefusal::ALL.iter().position(|one| one == reason);
                out.u8(REFUSED)
                    .u8(number.expect("every reason is in the list") as u8);
                put_span(out, *retry);
                put_text(out, text);
            }
            ControlMessage::Stream(stream) => {
                out.u8(STREAM).u32(stream.order).u8(stream.direction as u8);
                put(out, stream.rate.bits_per_second());
                put_span(out, stream.duration);
                out.u16(stream.payload_bytes);
            }
            ControlMessage::Run(run) => {
                out.u8(RUN).u32(run.order);
                out.u16(run.connections[0]).u16(run.connections[1]);
                put(out, run.windows[0].bytes());
                put(out, run.windows[1].bytes());
                put_span(out, run.duration);
                put_text(out, &run.congestion_control);
            }
            ControlMessage::Ready { order } => {
                out.u8(READY).u32(*order);
            }
            ControlMessage::StreamSent { order, datagrams } => {
                out.u8(STREAM_SENT).u32(*order);
                put(out, *datagrams);
            }
            ControlMessage::Arrivals { order, arrivals } => {
                out.u8(ARRIVALS).u32(*order);
                for arrival in arrivals {
                    put(out, arrival.number);
                    put(out, arrival.sent_ns);
                    put(out, arrival.arrived_ns);
                }
            }
            ControlMessage::NoRoom { order, datagrams } => {
                out.u8(NO_ROOM).u32(*order);
                put(out, *datagrams);
            }
            ControlMessage::Samples { order, samples } => {
                out.u8(SAMPLES).u32(*order);
                for sample in samples {
                    put_sample(out, sample);
                }
            }
            ControlMessage::RunEnded {
                order,
                congestion_control,
                busy_permille,
            } => {
                out.u8(RUN_ENDED).u32(*order);
                put_text(out, congestion_control);
                out.u16(*busy_permille);
            }
            ControlMessage::Alive => {
                out.u8(ALIVE);
            }
            ControlMessage::Stop { order } => {
                out.u8(STOP).u32(*order);
            }
            ControlMessage::Failed { order, text } => {
                out.u8(FAILED).u32(*order);
                put_text(out, text);
            }
            ControlMessage::Bye => {
                out.u8(BYE);
            }
        }
    }
}

/// Largest variable-length integer; larger values are clamped to it.
const LARGEST: u64 = (1 << 62) - 1;

fn put(out: &mut ByteWriter, value: u64) {
    out.varint(value.min(LARGEST));
}

fn put_span(out: &mut ByteWriter, span: Duration) {
    put(out, u64::try_from(span.as_nanos()).unwrap_or(LARGEST));
}

fn put_text(out: &mut ByteWriter, text: &str) {
    let end = (0..=text.len().min(LONGEST_TEXT))
        .rev()
        .find(|end| text.is_char_boundary(*end))
        .unwrap_or(0);
    out.prefixed(&text.as_bytes()[..end]);
}

fn rate(reader: &mut ByteReader<'_>) -> Result<Bitrate, WireError> {
    Ok(Bitrate::from_bits_per_second(reader.varint()?))
}

fn count(reader: &mut ByteReader<'_>) -> Result<ByteCount, WireError> {
    Ok(ByteCount::new(reader.varint()?))
}

fn span(reader: &mut ByteReader<'_>) -> Result<Duration, WireError> {
    Ok(Duration::from_nanos(reader.varint()?))
}

fn text(reader: &mut ByteReader<'_>) -> Result<String, WireError> {
    let bytes = reader.prefixed()?;
    if bytes.len() > LONGEST_TEXT {
        return Err(WireError::Malformed);
    }
    // It is shown to a person, whose terminal must not obey it.
    let text = std::str::from_utf8(bytes).map_err(|_| WireError::Malformed)?;
    if text.chars().any(char::is_control) {
        return Err(WireError::Malformed);
    }
    Ok(text.to_owned())
}

fn arrivals(reader: &mut ByteReader<'_>) -> Result<Vec<DatagramArrival>, WireError> {
    let mut arrivals = Vec::new();
    while !reader.is_empty() {
        arrivals.push(DatagramArrival {
            number: reader.varint()?,
            sent_ns: reader.varint()?,
            arrived_ns: reader.varint()?,
        });
    }
    Ok(arrivals)
}

fn samples(reader: &mut ByteReader<'_>) -> Result<Vec<RunSample>, WireError> {
    let mut samples = Vec::new();
    while !reader.is_empty() {
        samples.push(sample(reader)?);
    }
    Ok(samples)
}

fn put_sample(out: &mut ByteWriter, sample: &RunSample) {
    let info = &sample.info;
    out.u16(sample.connection);
    put_span(out, sample.at);
    for word in [
        info.segment_bytes,
        info.path_mtu,
        info.congestion_window,
        info.slow_start_threshold,
        info.unacknowledged,
        info.segments_retransmitted,
        info.reorderings,
    ] {
        out.u32(word);
    }
    for span in [
        info.rtt,
        info.rtt_variance,
        info.rtt_min,
        info.busy,
        info.receive_window_limited,
        info.send_buffer_limited,
    ] {
        put_span(out, span);
    }
    for count in [
        info.bytes_acknowledged,
        info.bytes_received,
        info.bytes_sent,
        info.bytes_retransmitted,
    ] {
        put(out, count.bytes());
    }
    put(out, info.delivery_rate.bits_per_second());
    // One more than the window, so that zero says that it is not known.
    put(
        out,
        info.peer_window
            .map_or(0, |window| window.bytes().saturating_add(1)),
    );
}

fn sample(reader: &mut ByteReader<'_>) -> Result<RunSample, WireError> {
    Ok(RunSample {
        connection: reader.u16()?,
        at: span(reader)?,
        info: TcpInfo {
            segment_bytes: reader.u32()?,
            path_mtu: reader.u32()?,
            congestion_window: reader.u32()?,
            slow_start_threshold: reader.u32()?,
            unacknowledged: reader.u32()?,
            segments_retransmitted: reader.u32()?,
            reorderings: reader.u32()?,
            rtt: span(reader)?,
            rtt_variance: span(reader)?,
            rtt_min: span(reader)?,
            busy: span(reader)?,
            receive_window_limited: span(reader)?,
            send_buffer_limited: span(reader)?,
            bytes_acknowledged: count(reader)?,
            bytes_received: count(reader)?,
            bytes_sent: count(reader)?,
            bytes_retransmitted: count(reader)?,
            delivery_rate: rate(reader)?,
            peer_window: reader.varint()?.checked_sub(1).map(ByteCount::new),
        },
    })
}

#[cfg(test)]
mod tests;
