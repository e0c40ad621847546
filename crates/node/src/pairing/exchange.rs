//! The exchange over TLS: the joiner proves the token, both pin each other.
//!
//! ```text
//! joiner  -> u8 version | 16 invitation id | 32 proof | prefixed the joiner's own name
//! inviter -> u8 answer  | 32 proof (if accepted) | prefixed the inviter's own name
//! ```
//!
//! Each message goes in a frame: its length as two bytes before it, 512 at most.

use std::io;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, client, server};
use vocab::{ByteReader, ByteWriter, NodeId};

use super::invitations::{InvitationDirectory, InvitationError};
use super::pins::{IdentityPin, PinDirectory, PinError};
use super::token::{InvitationToken, TokenError};
use crate::identity::{NodeIdentity, node_id};
use crate::tls;

const VERSION: u8 = 1;
/// Either message is below 128 bytes; the rest is room for later fields.
const LONGEST_FRAME: usize = 512;
/// For each step of the joiner's: a round trip over the worst satellite and a slow disk's sync.
const STEP_TIMEOUT: Duration = Duration::from_secs(10);
const EXPORTER_LABEL: &[u8] = b"EXPORTER-trunkline-pair-1";

const ACCEPTED: u8 = 0;
const UNKNOWN: u8 = 1;
const WRONG_PROOF: u8 = 2;
const USED: u8 = 3;
const EXPIRED: u8 = 4;
const NAME_TAKEN: u8 = 5;
const FAILED: u8 = 6;

/// Two nodes have pinned each other.
#[derive(Clone, Debug)]
pub struct PairingResult {
    /// The pin that was made here.
    pub pin: IdentityPin,
    /// The other node's own name.
    pub calls_itself: String,
}

/// The reason why pairing failed, for the person at the joiner's console.
#[derive(Debug, Error)]
pub enum ExchangeError {
    /// The token cannot be used.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// The inviter could not be reached.
    #[error(
        "cannot reach the inviting node at {address}: {cause}; check that the inviting node runs \
         (`trunkline node run`) and that firewalls allow this port"
    )]
    Unreachable {
        /// The expected address.
        address: String,
        /// The system's error.
        cause: io::Error,
    },
    /// The answering host is not the inviter.
    #[error(
        "the host that answered at {address} is not the node that made this token ({reason}); check the \
         address that was given to `peer invite --address`"
    )]
    NotTheInviter {
        /// The address.
        address: String,
        /// The error that TLS reports.
        reason: String,
    },
    /// The connection broke in the middle.
    #[error(
        "the connection broke during pairing ({0}); make a new invitation, because this invitation may be used already"
    )]
    Broken(io::Error),
    /// The other side's message cannot be read.
    #[error("the other node's answer cannot be read; check that both nodes have the same version")]
    InvalidMessage,
    /// Used before.
    #[error(
        "this token has been used already; run `trunkline peer invite` on the other node again, and if you \
         did not use the token, look for an unknown node in its `peer list`"
    )]
    Used,
    /// Too late.
    #[error(
        "the token has expired; run `trunkline peer invite` on the other node again and join within 15 minutes"
    )]
    Expired,
    /// The inviter does not know it.
    #[error(
        "the inviting node does not know this token; check that the token was made with the state directory \
         of the running node, and that its invitation was not removed"
    )]
    Unknown,
    /// The proof did not fit.
    #[error(
        "the inviting node refused the proof of the token; a device between the nodes may have changed the connection"
    )]
    WrongProof,
    /// The inviter has another node of that name.
    #[error(
        "the inviting node has already paired another node under this name, or has paired this node under \
         another name; on the inviting node, run `trunkline peer remove` for the old pin, or invite with \
         another --name"
    )]
    NameTaken,
    /// The inviter failed for a reason of its own.
    #[error("the inviting node could not store the pairing; look at the log of the inviting node")]
    InviterFailed,
    /// The pin could not be made here.
    #[error(transparent)]
    Pin(#[from] PinError),
    /// This node's own TLS set-up failed.
    #[error("TLS cannot be set up")]
    Tls(#[from] rustls::Error),
}

/// Joins the node that made `token`, and pins it as `name`.
///
/// # Errors
/// See [`ExchangeError`]; each says what to do.
pub async fn join(
    identity: &NodeIdentity,
    pins: &PinDirectory,
    own_name: &str,
    name: &str,
    token: &InvitationToken,
) -> Result<PairingResult, ExchangeError> {
    token.check_expiry(SystemTime::now())?;
    pins.check(name, Some(token.inviter))?;
    let mut stream = connect(identity, token).await?;

    let (joiner, inviter) = (identity.node(), token.inviter);
    let exported = exporter(stream.get_ref().1)?;
    let key = token.key();
    let request = PairingRequest {
        id: token.id(),
        proof: *proof(&key, PairingRole::Joiner, &exported, joiner, inviter).as_bytes(),
        joiner_name: own_name.to_owned(),
    };
    timely(write_frame(&mut stream, &request.emit()))
        .await
        .map_err(ExchangeError::Broken)?;
    let answer = timely(read_frame(&mut stream))
        .await
        .map_err(ExchangeError::Broken)?;

    let mut reader = ByteReader::new(&answer);
    let invalid = |_| ExchangeError::InvalidMessage;
    match reader.u8().map_err(invalid)? {
        ACCEPTED => {}
        UNKNOWN => return Err(ExchangeError::Unknown),
        WRONG_PROOF => return Err(ExchangeError::WrongProof),
        USED => return Err(ExchangeError::Used),
        EXPIRED => return Err(ExchangeError::Expired),
        NAME_TAKEN => return Err(ExchangeError::NameTaken),
        FAILED => return Err(ExchangeError::InviterFailed),
        _ => return Err(ExchangeError::InvalidMessage),
    }
    let shown: [u8; 32] = reader.array().map_err(invalid)?;
    let calls_itself = text(reader.prefixed().map_err(invalid)?)?;
    if proof(&key, PairingRole::Inviter, &exported, joiner, inviter) != shown {
        return Err(ExchangeError::WrongProof);
    }
    let pin = pins.add(name, inviter)?;
    // A clean end; the inviter does not depend on it.
    let _ = timely(stream.shutdown()).await;
    Ok(PairingResult { pin, calls_itself })
}

/// Answers a joiner on a connection whose handshake is complete, as the inviter. The joiner
/// receives the reason for a refusal; the error is for the inviter's own log.
///
/// # Errors
/// When the joiner is refused or the connection breaks.
pub async fn accept(
    identity: &NodeIdentity,
    invitations: &InvitationDirectory,
    pins: &PinDirectory,
    own_name: &str,
    stream: &mut server::TlsStream<TcpStream>,
) -> Result<PairingResult, ExchangeError> {
    let frame = read_frame(stream).await.map_err(ExchangeError::Broken)?;
    let request = PairingRequest::parse(&frame)?;
    let connection = stream.get_ref().1;
    let exported = exporter(connection)?;
    let joiner = connection
        .peer_certificates()
        .and_then(|chain| chain.first())
        .and_then(node_id)
        .ok_or(ExchangeError::InvalidMessage)?;

    let decided = decide(identity, invitations, pins, &request, joiner, &exported);
    let mut answer = ByteWriter::new();
    match &decided {
        Ok((_, proof)) => answer
            .u8(ACCEPTED)
            .bytes(proof.as_bytes())
            .prefixed(own_name.as_bytes()),
        Err(error) => answer.u8(code(error)),
    };
    let written = write_frame(stream, &answer.finish()).await;
    let _ = stream.shutdown().await;
    let (pin, _) = decided?;
    written.map_err(ExchangeError::Broken)?;
    Ok(PairingResult {
        pin,
        calls_itself: request.joiner_name,
    })
}

/// Everything durable happens here, before a byte of the answer is written.
fn decide(
    identity: &NodeIdentity,
    invitations: &InvitationDirectory,
    pins: &PinDirectory,
    request: &PairingRequest,
    joiner: NodeId,
    exported: &[u8; 32],
) -> Result<(IdentityPin, blake3::Hash), ExchangeError> {
    let message = proof_message(PairingRole::Joiner, exported, joiner, identity.node());
    let (open, key) = invitations
        .find(SystemTime::now(), &request.id, &request.proof, &message)
        .map_err(|error| match error {
            InvitationError::Unknown => ExchangeError::Unknown,
            InvitationError::WrongProof => ExchangeError::WrongProof,
            InvitationError::Used => ExchangeError::Used,
            InvitationError::Expired => ExchangeError::Expired,
            InvitationError::Io { .. }
            | InvitationError::NoRandomness
            | InvitationError::TooMany => ExchangeError::InviterFailed,
        })?;
    let name = open.name().unwrap_or(&request.joiner_name).to_owned();
    pins.check(&name, Some(joiner))?;
    open.mark_used().map_err(|error| {
        tracing::error!(%error, "an invitation could not be marked as used");
        ExchangeError::InviterFailed
    })?;
    let pin = pins.add(&name, joiner)?;
    let answer = proof(
        &key,
        PairingRole::Inviter,
        exported,
        joiner,
        identity.node(),
    );
    Ok((pin, answer))
}

fn code(error: &ExchangeError) -> u8 {
    match error {
        ExchangeError::Unknown => UNKNOWN,
        ExchangeError::WrongProof => WRONG_PROOF,
        ExchangeError::Used => USED,
        ExchangeError::Expired => EXPIRED,
        ExchangeError::Pin(
            PinError::Taken { .. } | PinError::KnownAs { .. } | PinError::Name { .. },
        ) => NAME_TAKEN,
        ExchangeError::Pin(
            PinError::Io { .. } | PinError::Damaged { .. } | PinError::Unknown { .. },
        )
        | ExchangeError::Token(_)
        | ExchangeError::Unreachable { .. }
        | ExchangeError::NotTheInviter { .. }
        | ExchangeError::Broken(_)
        | ExchangeError::InvalidMessage
        | ExchangeError::NameTaken
        | ExchangeError::InviterFailed
        | ExchangeError::Tls(_) => FAILED,
    }
}

/// The joiner's request: the first bytes that a node reads from an unknown host.
///
/// `version u8 | invitation's id, 16 bytes | proof, 32 bytes | name, with its length`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PairingRequest {
    id: [u8; 16],
    proof: [u8; 32],
    joiner_name: String,
}

impl PairingRequest {
    /// The request's bytes.
    #[must_use]
    pub fn emit(&self) -> Bytes {
        let mut request = ByteWriter::new();
        request
            .u8(VERSION)
            .bytes(&self.id)
            .bytes(&self.proof)
            .prefixed(self.joiner_name.as_bytes());
        request.finish()
    }

    /// Reads a request.
    ///
    /// # Errors
    /// [`ExchangeError::InvalidMessage`] when it is cut, of another version, or names its sender
    /// by what is no name.
    pub fn parse(frame: &[u8]) -> Result<Self, ExchangeError> {
        let mut reader = ByteReader::new(frame);
        let invalid = |_| ExchangeError::InvalidMessage;
        if reader.u8().map_err(invalid)? != VERSION {
            return Err(ExchangeError::InvalidMessage);
        }
        Ok(Self {
            id: reader.array().map_err(invalid)?,
            proof: reader.array().map_err(invalid)?,
            joiner_name: text(reader.prefixed().map_err(invalid)?)?,
        })
    }
}

/// A name that will be printed and may become a file's name.
fn text(bytes: &[u8]) -> Result<String, ExchangeError> {
    String::from_utf8(bytes.to_vec())
        .ok()
        .filter(|name| crate::config::is_name(name))
        .ok_or(ExchangeError::InvalidMessage)
}

async fn connect(
    identity: &NodeIdentity,
    token: &InvitationToken,
) -> Result<client::TlsStream<TcpStream>, ExchangeError> {
    let unreachable = |cause| ExchangeError::Unreachable {
        address: token.address.clone(),
        cause,
    };
    let socket = timely(TcpStream::connect(&token.address))
        .await
        .map_err(unreachable)?;
    let _ = socket.set_nodelay(true);
    let connector = TlsConnector::from(tls::client(identity, token.inviter, tls::PAIRING)?);
    timely(connector.connect(tls::unchecked_name(), socket))
        .await
        .map_err(|error| ExchangeError::NotTheInviter {
            address: token.address.clone(),
            reason: error.to_string(),
        })
}

fn exporter<Data>(connection: &rustls::ConnectionCommon<Data>) -> Result<[u8; 32], rustls::Error> {
    connection.export_keying_material([0; 32], EXPORTER_LABEL, None)
}

#[derive(Clone, Copy, Debug)]
enum PairingRole {
    Joiner,
    Inviter,
}

fn proof(
    key: &[u8; 32],
    role: PairingRole,
    exported: &[u8; 32],
    joiner: NodeId,
    inviter: NodeId,
) -> blake3::Hash {
    blake3::keyed_hash(key, &proof_message(role, exported, joiner, inviter))
}

fn proof_message(
    role: PairingRole,
    exported: &[u8; 32],
    joiner: NodeId,
    inviter: NodeId,
) -> Vec<u8> {
    let role: &[u8] = match role {
        PairingRole::Joiner => b"joiner ",
        PairingRole::Inviter => b"inviter",
    };
    [role, exported, &joiner.0, &inviter.0].concat()
}

async fn timely<T>(step: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    tokio::time::timeout(STEP_TIMEOUT, step)
        .await
        .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

async fn read_frame(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Vec<u8>> {
    let length = usize::from(stream.read_u16().await?);
    if length > LONGEST_FRAME {
        return Err(io::Error::other("a message longer than any of pairing's"));
    }
    let mut frame = vec![0; length];
    stream.read_exact(&mut frame).await?;
    Ok(frame)
}

async fn write_frame(stream: &mut (impl AsyncWrite + Unpin), frame: &[u8]) -> io::Result<()> {
    debug_assert!(frame.len() <= LONGEST_FRAME);
    let length = u16::try_from(frame.len()).map_err(io::Error::other)?;
    stream.write_u16(length).await?;
    stream.write_all(frame).await?;
    stream.flush().await
}
