//! The life of a flow: Open, Answer, Finish, Reset.

use std::net::{IpAddr, SocketAddr};

use vocab::{ByteReader, ByteWriter, FlowId};

use crate::{ConnectFailure, OpenAnswer, OpenRequest, ResetReason, SessionError};

/// A new flow of the sender's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenFrame {
    /// Its id, above all that the sender has used.
    pub flow: FlowId,
    /// Parameters of the connection to open.
    pub open: OpenRequest,
}

/// Result of an open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnswerFrame {
    /// The flow.
    pub flow: FlowId,
    /// The answer.
    pub answer: OpenAnswer,
}

/// The end of the sender's direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FinishFrame {
    /// The flow.
    pub flow: FlowId,
    /// The length of the whole stream in bytes.
    pub final_offset: u64,
}

/// The end of a flow in both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResetFrame {
    /// The flow.
    pub flow: FlowId,
    /// Reason.
    pub reason: ResetReason,
}

const KEEP_CLIENT_ADDRESS: u8 = 1;
const NEVER_STORE: u8 = 2;

impl OpenFrame {
    pub(super) fn parse(reader: &mut ByteReader<'_>) -> Result<Self, SessionError> {
        let flow = FlowId(reader.varint()?);
        let flags = reader.u8()?;
        if flags & !(KEEP_CLIENT_ADDRESS | NEVER_STORE) != 0 {
            return Err(SessionError::InvalidMessage("unknown flags in an open"));
        }
        let open = OpenRequest {
            keep_client_address: flags & KEEP_CLIENT_ADDRESS != 0,
            may_store: flags & NEVER_STORE == 0,
            accelerator: reader.u8()?,
            dscp: reader.u8()?,
            client: parse_address(reader)?,
            server: parse_address(reader)?,
        };
        Ok(Self { flow, open })
    }

    pub(super) fn emit(&self, out: &mut ByteWriter) {
        let flags = (u8::from(self.open.keep_client_address) * KEEP_CLIENT_ADDRESS)
            | (u8::from(!self.open.may_store) * NEVER_STORE);
        out.varint(self.flow.0)
            .u8(flags)
            .u8(self.open.accelerator)
            .u8(self.open.dscp);
        emit_address(&self.open.client, out);
        emit_address(&self.open.server, out);
    }
}

fn parse_address(reader: &mut ByteReader<'_>) -> Result<SocketAddr, SessionError> {
    let address: IpAddr = match reader.u8()? {
        4 => reader.array::<4>()?.into(),
        6 => reader.array::<16>()?.into(),
        _ => return Err(SessionError::InvalidMessage("unknown family of an address")),
    };
    Ok(SocketAddr::new(address, reader.u16()?))
}

/// Flow label and scope of an IPv6 socket address mean nothing on another node and stay here.
fn emit_address(address: &SocketAddr, out: &mut ByteWriter) {
    match address.ip() {
        IpAddr::V4(ip) => out.u8(4).bytes(&ip.octets()),
        IpAddr::V6(ip) => out.u8(6).bytes(&ip.octets()),
    };
    out.u16(address.port());
}

impl AnswerFrame {
    pub(super) fn parse(reader: &mut ByteReader<'_>) -> Result<Self, SessionError> {
        let flow = FlowId(reader.varint()?);
        let answer = match reader.u8()? {
            0 => OpenAnswer::Connected,
            1 => OpenAnswer::Failed(ConnectFailure::Refused),
            2 => OpenAnswer::Failed(ConnectFailure::TimedOut),
            3 => OpenAnswer::Failed(ConnectFailure::Unreachable),
            4 => OpenAnswer::Failed(ConnectFailure::NotPermitted),
            5 => OpenAnswer::Failed(ConnectFailure::Exhausted),
            6 => OpenAnswer::Failed(ConnectFailure::Filtered),
            7 => OpenAnswer::Failed(ConnectFailure::AnswersElsewhere),
            _ => OpenAnswer::Failed(ConnectFailure::Other),
        };
        Ok(Self { flow, answer })
    }

    pub(super) fn emit(self, out: &mut ByteWriter) {
        out.varint(self.flow.0).u8(match self.answer {
            OpenAnswer::Connected => 0,
            OpenAnswer::Failed(ConnectFailure::Refused) => 1,
            OpenAnswer::Failed(ConnectFailure::TimedOut) => 2,
            OpenAnswer::Failed(ConnectFailure::Unreachable) => 3,
            OpenAnswer::Failed(ConnectFailure::NotPermitted) => 4,
            OpenAnswer::Failed(ConnectFailure::Exhausted) => 5,
            OpenAnswer::Failed(ConnectFailure::Filtered) => 6,
            OpenAnswer::Failed(ConnectFailure::AnswersElsewhere) => 7,
            OpenAnswer::Failed(ConnectFailure::Other) => 255,
        });
    }
}

impl FinishFrame {
    pub(super) fn parse(reader: &mut ByteReader<'_>) -> Result<Self, SessionError> {
        Ok(Self {
            flow: FlowId(reader.varint()?),
            final_offset: reader.varint()?,
        })
    }

    pub(super) fn emit(self, out: &mut ByteWriter) {
        out.varint(self.flow.0).varint(self.final_offset);
    }
}

impl ResetFrame {
    pub(super) fn parse(reader: &mut ByteReader<'_>) -> Result<Self, SessionError> {
        Ok(Self {
            flow: FlowId(reader.varint()?),
            reason: reason_from(reader.u8()?),
        })
    }

    pub(super) fn emit(self, out: &mut ByteWriter) {
        out.varint(self.flow.0).u8(reason_number(self.reason));
    }
}

fn reason_from(number: u8) -> ResetReason {
    match number {
        0 => ResetReason::Gone,
        1 => ResetReason::HostReset,
        2 => ResetReason::HostLost,
        3 => ResetReason::Accelerator,
        4 => ResetReason::Reduction,
        5 => ResetReason::Stopping,
        6 => ResetReason::Limit,
        7 => ResetReason::Policy,
        8 => ResetReason::PeerLost,
        9 => ResetReason::PeerRestarted,
        10 => ResetReason::PeerRemoved,
        other => ResetReason::Unknown(other),
    }
}

fn reason_number(reason: ResetReason) -> u8 {
    match reason {
        ResetReason::Gone => 0,
        ResetReason::HostReset => 1,
        ResetReason::HostLost => 2,
        ResetReason::Accelerator => 3,
        ResetReason::Reduction => 4,
        ResetReason::Stopping => 5,
        ResetReason::Limit => 6,
        ResetReason::Policy => 7,
        ResetReason::PeerLost => 8,
        ResetReason::PeerRestarted => 9,
        ResetReason::PeerRemoved => 10,
        ResetReason::Unknown(other) => other,
    }
}
