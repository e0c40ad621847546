//! Entries for fuzzing, and their good inputs.

use accelerate::shared::SharedHandle;
use bytes::Bytes;
use vocab::{FlowSegment, SegmentKind, Time};

use super::buffer::RopBuffer;
use super::request::read_requests;
use super::response::read_responses;
use super::tactics::{
    CallOutcome, FarOutput, NearOutput, SessionPlace, SessionTable, TacticsFar, TacticsNear,
    samples::frames as frame_samples,
};
use crate::emsmdb::rpc::{CHAIN, RequestEnvelope, RpcRequest, RpcResponse};
use crate::emsmdb::{ContextHandle, ExtendedFlags, PlainBuffer, connect, lz77, opnum};

/// Outputs after one input past which a machine is taken to be in a circle.
const MOST_OUTPUTS: usize = 10_000;

/// Bytes as compressed data, and as data to compress.
///
/// # Panics
/// When compressed data does not read back equal.
pub fn compression(bytes: &[u8]) {
    let size = usize::from(u16::from_le_bytes(*bytes.first_chunk().unwrap_or(&[0; 2])));
    if let Ok(plain) = lz77::decompress(bytes.get(2..).unwrap_or_default(), size) {
        assert_eq!(plain.len(), size);
    }
    let compressed = lz77::compress(bytes);
    assert_eq!(
        lz77::decompress(&compressed, bytes.len()).as_deref(),
        Ok(bytes)
    );
}

/// Bytes as every stub. What is read can be written and read again equal.
///
/// # Panics
/// When it cannot.
pub fn stubs(bytes: &[u8]) {
    let stub = Bytes::copy_from_slice(bytes);
    for opnum in [opnum::RPC, opnum::RPC_EXT2, opnum::HTTP_EXECUTE] {
        if let Ok(request) = RpcRequest::read(opnum, &stub) {
            let again = RpcRequest::read(opnum, &request.write()).expect("it was just written");
            assert_eq!(plain(&again.buffers), plain(&request.buffers));
            assert_eq!(again.envelope, request.envelope);
        }
        if let Ok(response) = RpcResponse::read(opnum, &stub) {
            let again = RpcResponse::read(opnum, &response.write()).expect("it was just written");
            assert_eq!(plain(&again.buffers), plain(&response.buffers));
        }
    }
    for opnum in [opnum::CONNECT, opnum::CONNECT_EX] {
        if let Ok(request) = connect::ConnectRequest::read(opnum, &stub) {
            let again = connect::ConnectRequest::read(opnum, &request.write());
            assert_eq!(again.as_ref(), Ok(&request));
        }
        if let Ok(response) = connect::ConnectResponse::read(opnum, &stub) {
            let again = connect::ConnectResponse::read(opnum, &response.write());
            assert_eq!(again.as_ref(), Ok(&response));
        }
    }
    let _ = connect::ContextStub::read(&stub);
}

fn plain(buffers: &[PlainBuffer]) -> Vec<&Bytes> {
    buffers.iter().map(|one| &one.bytes).collect()
}

/// Bytes as a ROP buffer, of requests and of the answers to them.
///
/// # Panics
/// When a ROP reaches beyond its list.
pub fn lists(bytes: &[u8]) {
    let split = bytes.len().min(usize::from(*bytes.first().unwrap_or(&0)));
    let (asked, answered) = bytes.split_at(split);
    for bytes in [asked, answered, bytes] {
        let bytes = Bytes::copy_from_slice(bytes);
        if let Ok(buffer) = RopBuffer::read(&bytes) {
            assert_eq!(buffer.write(), bytes);
        }
    }
    let list = |bytes: &[u8]| RopBuffer {
        rops: Bytes::copy_from_slice(bytes),
        handles: vec![1, 2],
    };
    let asked = list(asked.get(1..).unwrap_or_default());
    let Ok(requests) = read_requests(&asked) else {
        return;
    };
    let answered = list(answered);
    let columns = Some(vec![0x0037_001f, 0x0e06_0040, 0x1000_101f]);
    let responses = read_responses(&requests, &answered, |_| columns.clone());
    let end = responses.responses.last().map_or(0, |last| last.end);
    assert!(end <= answered.rops.len());
}

/// A connection whose machines are fuzzed.
struct FuzzedConnection {
    near: TacticsNear,
    far: TacticsFar,
    /// Calls that are at the server.
    at_server: usize,
}

impl FuzzedConnection {
    fn new(table: &SharedHandle<SessionTable>, flow: u64) -> Self {
        let (client, server) = ([198, 18, 1, 2].into(), [198, 18, 2, 2].into());
        let place = SessionPlace::new(table.clone(), flow, client, server);
        Self {
            near: TacticsNear::new(true),
            far: TacticsFar::new(true, place),
            at_server: 0,
        }
    }

    fn input(&mut self, step: u8, piece: Bytes) {
        match step % 8 {
            0 => self
                .near
                .call(Time::ZERO, u64::from(step), opnum::RPC, piece),
            1 => self
                .near
                .call(Time::ZERO, u64::from(step), opnum::RPC_EXT2, piece),
            2 => {
                let opnum = match step / 8 % 16 {
                    HTTP => opnum::HTTP_EXECUTE,
                    other => u16::from(other),
                };
                self.near.call(Time::ZERO, u64::from(step), opnum, piece);
            }
            3 | 4 if self.at_server > 0 => {
                self.at_server -= 1;
                self.far.answered(Time::ZERO, CallOutcome::Response(piece));
            }
            5 if self.at_server > 0 => {
                self.at_server -= 1;
                self.far
                    .answered(Time::ZERO, CallOutcome::Fault(u32::from(step)));
            }
            6 => self.near.segment(Time::ZERO, segment(step, piece)),
            7 => self.far.segment(Time::ZERO, segment(step, piece)),
            _ => {}
        }
    }

    /// Handles the next output; false if there is none.
    fn drain(&mut self) -> bool {
        if let Some(output) = self.near.poll_output() {
            if let NearOutput::ToFar(segment) = output {
                self.far.segment(Time::ZERO, segment);
            }
            return true;
        }
        match self.far.poll_output() {
            Some(FarOutput::ToNear(segment)) => self.near.segment(Time::ZERO, segment),
            Some(FarOutput::Call { .. }) => self.at_server += 1,
            Some(FarOutput::Close) => {}
            None => return false,
        }
        true
    }
}

/// Bytes as calls of a client, answers of a server and segments between both machines, in two
/// connections. A step of 128 or more is for the second one.
///
/// # Panics
/// When a machine does not come to rest.
pub fn machines(bytes: &[u8]) {
    let table = SharedHandle::new(SessionTable::default());
    let mut connections = [0, 1].map(|flow| FuzzedConnection::new(&table, flow));
    let mut rest = bytes;
    while let Some((head, more)) = rest.split_first_chunk::<3>() {
        let [step, high, low] = *head;
        let length = usize::from(u16::from_be_bytes([high, low])).min(more.len());
        let (piece, behind) = more.split_at(length);
        rest = behind;
        connections[usize::from(step >= SECOND)].input(step, Bytes::copy_from_slice(piece));
        let mut is_at_rest = false;
        for _ in 0..MOST_OUTPUTS {
            let drained = connections.each_mut().map(FuzzedConnection::drain);
            let woken = table.with(SessionTable::poll_wake);
            if let Some(flow) = woken {
                connections[flow as usize].far.woken(Time::ZERO);
            }
            if woken.is_none() && !drained.contains(&true) {
                is_at_rest = true;
                break;
            }
        }
        assert!(is_at_rest, "the machines do not come to rest");
    }
}

/// The number of a step that stands for Execute.
const HTTP: u8 = 15;

/// The first step of the second connection.
const SECOND: u8 = 128;

/// Good inputs for [`machines`]: a name, and the steps.
#[must_use]
pub fn machine_samples() -> Vec<(&'static str, Vec<u8>)> {
    const NAMES: [[&str; 3]; 3] = [
        ["xp", "xp-two-connections", "xp-all-frames"],
        [
            "extended",
            "extended-two-connections",
            "extended-all-frames",
        ],
        ["http", "http-two-connections", "http-all-frames"],
    ];
    let mut found = Vec::new();
    for ([one, two, all], (opnum, request, response)) in NAMES.into_iter().zip(samples()) {
        let call = match opnum {
            opnum::RPC => 0,
            opnum::RPC_EXT2 => 1,
            _ => 2 + 8 * HTTP,
        };
        let once = [steps(call, &request), steps(3, &response)].concat();
        found.push((one, once.repeat(2)));
        let second = [steps(SECOND | call, &request), steps(SECOND | 3, &response)].concat();
        found.push((two, [&once[..], &second, &once, &second].concat()));
        let asked = RpcRequest::read(opnum, &request).expect("a good input");
        let answered = RpcResponse::read(opnum, &response).expect("a good input");
        let mut together = once.clone();
        for sample in frame_samples(&asked, &answered) {
            let frames = sample.segments.iter().flat_map(|segment| {
                let kind = match segment.kind {
                    SegmentKind::Frame => 0,
                    SegmentKind::Control => 1,
                    SegmentKind::Payload => 2,
                };
                let half = if sample.is_for_near { 6 } else { 7 };
                steps(kind * 8 + half, &segment.bytes)
            });
            let frames: Vec<u8> = frames.collect();
            if opnum == opnum::RPC_EXT2 {
                found.push((sample.name, [&once[..], &frames, &once].concat()));
            }
            together.extend(frames);
            together.extend(&once);
        }
        found.push((all, together));
    }
    found
}

fn steps(step: u8, bytes: &[u8]) -> Vec<u8> {
    let length = u16::try_from(bytes.len()).expect("good inputs are small");
    [&[step][..], &length.to_be_bytes(), bytes].concat()
}

fn segment(step: u8, bytes: Bytes) -> FlowSegment {
    match step / 8 % 3 {
        0 => FlowSegment::frame(bytes),
        1 => FlowSegment::control(bytes),
        _ => FlowSegment::payload(bytes),
    }
}

/// Requests and answers of a stream that is opened and read, for each envelope: the number of
/// the method and two stubs.
#[must_use]
pub fn samples() -> Vec<(u16, Bytes, Bytes)> {
    let envelopes = [
        RequestEnvelope::Xp {
            most: 0x7fff,
            out_max: 0x7fff,
        },
        RequestEnvelope::Extended {
            flags: CHAIN,
            out_max: 0x1_8008,
            auxiliary: Bytes::new(),
            auxiliary_max: 0x1008,
        },
        RequestEnvelope::Http {
            flags: CHAIN,
            out_max: 0x1_8008,
            auxiliary: Bytes::new(),
            request_id: Bytes::from_static(b"{0}:1"),
        },
    ];
    let asked = RopBuffer {
        rops: Bytes::from_static(&[0x2b, 0, 0, 1, 2, 1, 1, 0x37, 0, 0x2c, 0, 1, 4, 0]),
        handles: vec![5, u32::MAX],
    };
    let answered = RopBuffer {
        rops: Bytes::from_static(&[
            0x2b, 1, 0, 0, 0, 0, 9, 0, 0, 0, 0x2c, 1, 0, 0, 0, 0, 4, 0, 1, 2, 3, 4,
        ]),
        handles: vec![5, 6],
    };
    let flags = ExtendedFlags(ExtendedFlags::COMPRESSED | ExtendedFlags::XOR_MAGIC);
    let sample = |envelope: RequestEnvelope| {
        let buffer = |buffer: &RopBuffer| PlainBuffer {
            flags,
            bytes: buffer.write(),
        };
        let request = RpcRequest {
            context: ContextHandle([3; 20]),
            envelope,
            buffers: vec![buffer(&asked)],
        };
        let response = RpcResponse::answering(&request, vec![buffer(&answered)]);
        (request.envelope.opnum(), request.write(), response.write())
    };
    envelopes.into_iter().map(sample).collect()
}
