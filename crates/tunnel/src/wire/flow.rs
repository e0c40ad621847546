//! The life of a flow: Open, Answer, Finish, Reset.

use std::net::{IpAddr, SocketAddr};

use vocab::{FlowId, Reader, Writer};

use crate::{Answer, ConnectFailure, Error, Open, ResetReason};

/// A new flow of the sender's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenFrame {
    /// Its id, above all that the sender has used.
    pub flow: FlowId,
    /// What is wanted.
    pub open: Open,
}

/// What became of an open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnswerFrame {
    /// The flow.
    pub flow: FlowId,
    /// The answer.
    pub answer: Answer,
}

/// The end of the sender's direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finish {
    /// The flow.
    pub flow: FlowId,
    /// The length of the whole stream in bytes.
    pub final_offset: u64,
}

/// The end of a flow in both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reset {
    /// The flow.
    pub flow: FlowId,
    /// Why.
    pub reason: ResetReason,
}

const KEEP_CLIENT_ADDRESS: u8 = 1;
const NEVER_STORE: u8 = 2;

impl OpenFrame {
    pub(super) fn parse(reader: &mut Reader<'_>) -> Result<Self, Error> {
        let flow = FlowId(reader.varint()?);
        let flags = reader.u8()?;
        if flags & !(KEEP_CLIENT_ADDRESS | NEVER_STORE) != 0 {
            return Err(Error::InvalidMessage("unknown flags in an open"));
        }
        let open = Open {
            keep_client_address: flags & KEEP_CLIENT_ADDRESS != 0,
            may_store: flags & NEVER_STORE == 0,
            accelerator: reader.u8()?,
            dscp: reader.u8()?,
            client: parse_address(reader)?,
            server: parse_address(reader)?,
        };
        Ok(Self { flow, open })
    }

    pub(super) fn emit(&self, out: &mut Writer) {
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

fn parse_address(reader: &mut Reader<'_>) -> Result<SocketAddr, Error> {
    let address: IpAddr = match reader.u8()? {
        4 => reader.array::<4>()?.into(),
        6 => reader.array::<16>()?.into(),
        _ => return Err(Error::InvalidMessage("unknown family of an address")),
    };
    Ok(SocketAddr::new(address, reader.u16()?))
}

/// Flow label and scope of an IPv6 socket address mean nothing on another node and stay here.
fn emit_address(address: &SocketAddr, out: &mut Writer) {
    match address.ip() {
        IpAddr::V4(ip) => out.u8(4).bytes(&ip.octets()),
        IpAddr::V6(ip) => out.u8(6).bytes(&ip.octets()),
    };
    out.u16(address.port());
}

impl AnswerFrame {
    pub(super) fn parse(reader: &mut Reader<'_>) -> Result<Self, Error> {
        let flow = FlowId(reader.varint()?);
        let answer = match reader.u8()? {
            0 => Answer::Connected,
            1 => Answer::Failed(ConnectFailure::Refused),
            2 => Answer::Failed(ConnectFailure::TimedOut),
            3 => Answer::Failed(ConnectFailure::Unreachable),
            4 => Answer::Failed(ConnectFailure::NotPermitted),
            5 => Answer::Failed(ConnectFailure::Exhausted),
            6 => Answer::Failed(ConnectFailure::Filtered),
            7 => Answer::Failed(ConnectFailure::AnswersElsewhere),
            _ => Answer::Failed(ConnectFailure::Other),
        };
        Ok(Self { flow, answer })
    }

    pub(super) fn emit(self, out: &mut Writer) {
        out.varint(self.flow.0).u8(match self.answer {
            Answer::Connected => 0,
            Answer::Failed(ConnectFailure::Refused) => 1,
            Answer::Failed(ConnectFailure::TimedOut) => 2,
            Answer::Failed(ConnectFailure::Unreachable) => 3,
            Answer::Failed(ConnectFailure::NotPermitted) => 4,
            Answer::Failed(ConnectFailure::Exhausted) => 5,
            Answer::Failed(ConnectFailure::Filtered) => 6,
            Answer::Failed(ConnectFailure::AnswersElsewhere) => 7,
            Answer::Failed(ConnectFailure::Other) => 255,
        });
    }
}

impl Finish {
    pub(super) fn parse(reader: &mut Reader<'_>) -> Result<Self, Error> {
        Ok(Self {
            flow: FlowId(reader.varint()?),
            final_offset: reader.varint()?,
        })
    }

    pub(super) fn emit(self, out: &mut Writer) {
        out.varint(self.flow.0).varint(self.final_offset);
    }
}

impl Reset {
    pub(super) fn parse(reader: &mut Reader<'_>) -> Result<Self, Error> {
        Ok(Self {
            flow: FlowId(reader.varint()?),
            reason: reason_from(reader.u8()?),
        })
    }

    pub(super) fn emit(self, out: &mut Writer) {
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
