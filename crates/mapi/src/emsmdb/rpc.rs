//! The calls that carry ROPs: EcDoRpc of Outlook XP, and EcDoRpcExt2 ([MS-OXCRPC] §3.1.4.2).
//!
//! ```text
//!  EcDoRpc      in:  CXH │ rgb (obfuscated) │ pcb u16 │ cbMax u16
//!               out: CXH │ rgb (obfuscated) │ pcb u16 │ result u32
//!  EcDoRpcExt2  in:  CXH │ pulFlags │ rgbIn │ cbIn │ pcbOut │ rgbAuxIn │ cbAuxIn │ pcbAuxOut
//!               out: CXH │ pulFlags │ rgbOut │ pcbOut │ rgbAuxOut │ pcbAuxOut │ pulTransTime │ result u32
//! ```
//! The auxiliary buffers are kept as they are.

use bytes::{Bytes, BytesMut};

use super::execute;
use super::extended::{ExtendedFlags, PlainBuffer, read_chain, write_chain};
use super::ndr::{NdrReader, NdrWriter};
use super::{ContextHandle, EmsmdbError, obfuscate, opnum};

/// The most bytes of ROP buffers in one direction of EcDoRpcExt2 (BIG_RANGE_ULONG).
pub const BUFFERS_MAX: u32 = 0x4_0000;
/// The most auxiliary bytes (SMALL_RANGE_ULONG).
pub const AUXILIARY_MAX: u32 = 0x1008;

/// The client asks for no compression (pulFlags).
pub const NO_COMPRESSION: u32 = 1;
/// The client asks for no obfuscation (pulFlags).
pub const NO_XOR_MAGIC: u32 = 2;
/// The client takes several buffers (pulFlags).
pub const CHAIN: u32 = 4;

/// The fields of a request around its buffers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestEnvelope {
    /// EcDoRpc.
    Xp {
        /// The maximum count of the array.
        most: u32,
        /// The most bytes that the client takes.
        out_max: u16,
    },
    /// EcDoRpcExt2.
    Extended {
        /// [`NO_COMPRESSION`], [`NO_XOR_MAGIC`] and [`CHAIN`].
        flags: u32,
        /// The most bytes that the client takes.
        out_max: u32,
        /// The auxiliary buffer.
        auxiliary: Bytes,
        /// The most auxiliary bytes that the client takes.
        auxiliary_max: u32,
    },
    /// Execute of MAPI over HTTP.
    Http {
        /// [`NO_COMPRESSION`], [`NO_XOR_MAGIC`] and [`CHAIN`].
        flags: u32,
        /// The most bytes that the client takes.
        out_max: u32,
        /// The auxiliary buffer.
        auxiliary: Bytes,
        /// The client's X-RequestId. Empty in requests that a client has not made.
        request_id: Bytes,
    },
}

impl RequestEnvelope {
    /// The most bytes of buffers that the answer may have.
    #[must_use]
    pub fn out_max(&self) -> usize {
        match self {
            Self::Xp { out_max, .. } => usize::from(*out_max),
            Self::Extended { out_max, .. } | Self::Http { out_max, .. } => *out_max as usize,
        }
    }

    /// True if the client takes several buffers.
    #[must_use]
    pub fn takes_chain(&self) -> bool {
        match self {
            Self::Xp { .. } => false,
            Self::Extended { flags, .. } | Self::Http { flags, .. } => flags & CHAIN != 0,
        }
    }

    /// The number of its method.
    #[must_use]
    pub fn opnum(&self) -> u16 {
        match self {
            Self::Xp { .. } => opnum::RPC,
            Self::Extended { .. } => opnum::RPC_EXT2,
            Self::Http { .. } => opnum::HTTP_EXECUTE,
        }
    }

    /// The flags of the call, if it has any.
    pub fn flags_mut(&mut self) -> Option<&mut u32> {
        match self {
            Self::Xp { .. } => None,
            Self::Extended { flags, .. } | Self::Http { flags, .. } => Some(flags),
        }
    }

    /// Removes the data that belongs to one call of a client: its auxiliary buffer and its identity.
    pub fn forget_call(&mut self) {
        match self {
            Self::Xp { .. } => {}
            Self::Extended { auxiliary, .. } => *auxiliary = Bytes::new(),
            Self::Http {
                auxiliary,
                request_id,
                ..
            } => {
                *auxiliary = Bytes::new();
                *request_id = Bytes::new();
            }
        }
    }

    /// True if a server treats both requests alike: only auxiliary data may differ.
    #[must_use]
    pub fn is_like(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Xp { out_max, .. }, Self::Xp { out_max: most, .. }) => out_max == most,
            (
                Self::Extended { flags, out_max, .. },
                Self::Extended {
                    flags: also,
                    out_max: most,
                    ..
                },
            )
            | (
                Self::Http { flags, out_max, .. },
                Self::Http {
                    flags: also,
                    out_max: most,
                    ..
                },
            ) => flags == also && out_max == most,
            (Self::Xp { .. } | Self::Extended { .. } | Self::Http { .. }, _) => false,
        }
    }

    /// The encoding of a buffer that answers this request, made here: without compression.
    #[must_use]
    pub fn answer_flags(&self) -> ExtendedFlags {
        match self {
            Self::Xp { .. } => ExtendedFlags(ExtendedFlags::XOR_MAGIC),
            Self::Extended { flags, .. } | Self::Http { flags, .. }
                if flags & NO_XOR_MAGIC != 0 =>
            {
                ExtendedFlags(0)
            }
            Self::Extended { .. } | Self::Http { .. } => ExtendedFlags(ExtendedFlags::XOR_MAGIC),
        }
    }
}

/// A request that carries ROPs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RpcRequest {
    /// The session.
    pub context: ContextHandle,
    /// The fields around the buffers.
    pub envelope: RequestEnvelope,
    /// The ROP buffers; one for EcDoRpc.
    pub buffers: Vec<PlainBuffer>,
}

impl RpcRequest {
    /// Reads the stub of EcDoRpc, EcDoRpcExt2 or Execute.
    ///
    /// # Errors
    /// [`EmsmdbError`] when it has another form.
    pub fn read(opnum: u16, stub: &Bytes) -> Result<Self, EmsmdbError> {
        if opnum == opnum::HTTP_EXECUTE {
            return execute::read_request(stub);
        }
        let mut reader = NdrReader::new(stub);
        let context = reader.context()?;
        let (envelope, buffers) = match opnum {
            opnum::RPC => {
                let (most, rgb) = reader.varying()?;
                let count = reader.u16()?;
                let out_max = reader.u16()?;
                if usize::from(count) != rgb.len() {
                    return Err(EmsmdbError::Contradiction("pcb"));
                }
                (RequestEnvelope::Xp { most, out_max }, xp_buffers(&rgb))
            }
            opnum::RPC_EXT2 => {
                let flags = reader.u32()?;
                let rgb = reader.conformant()?;
                let count = reader.u32()?;
                let out_max = reader.u32()?;
                let auxiliary = reader.conformant()?;
                let auxiliary_count = reader.u32()?;
                let auxiliary_max = reader.u32()?;
                if count as usize != rgb.len() || count > BUFFERS_MAX || out_max > BUFFERS_MAX {
                    return Err(EmsmdbError::Contradiction("cbIn"));
                }
                if auxiliary_count as usize != auxiliary.len()
                    || auxiliary_count > AUXILIARY_MAX
                    || auxiliary_max > AUXILIARY_MAX
                {
                    return Err(EmsmdbError::Contradiction("cbAuxIn"));
                }
                let envelope = RequestEnvelope::Extended {
                    flags,
                    out_max,
                    auxiliary,
                    auxiliary_max,
                };
                (envelope, read_chain(&rgb)?)
            }
            _ => return Err(EmsmdbError::Contradiction("opnum")),
        };
        reader.finish()?;
        Ok(Self {
            context,
            envelope,
            buffers,
        })
    }

    /// Writes the stub.
    #[must_use]
    pub fn write(&self) -> Bytes {
        let size: usize = self.buffers.iter().map(|one| one.bytes.len()).sum();
        let mut writer = NdrWriter::with_capacity(size + 96);
        writer.context(self.context);
        match &self.envelope {
            RequestEnvelope::Xp { most, out_max } => {
                let rgb = xp_bytes(&self.buffers);
                writer.varying(*most, &rgb).u16(rgb.len() as u16);
                writer.u16(*out_max);
            }
            RequestEnvelope::Extended {
                flags,
                out_max,
                auxiliary,
                auxiliary_max,
            } => {
                let chain = write_chain(&self.buffers);
                writer
                    .u32(*flags)
                    .conformant(&chain)
                    .u32(chain.len() as u32);
                writer.u32(*out_max).conformant(auxiliary);
                writer.u32(auxiliary.len() as u32).u32(*auxiliary_max);
            }
            RequestEnvelope::Http {
                flags,
                out_max,
                auxiliary,
                request_id,
            } => {
                return execute::write_request(
                    self.context,
                    request_id,
                    *flags,
                    *out_max,
                    &self.buffers,
                    auxiliary,
                );
            }
        }
        writer.finish()
    }
}

/// The fields of an answer around its buffers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResponseEnvelope {
    /// EcDoRpc.
    Xp {
        /// The maximum count of the array.
        most: u32,
    },
    /// EcDoRpcExt2.
    Extended {
        /// Always zero in this release of the protocol.
        flags: u32,
        /// The auxiliary buffer.
        auxiliary: Bytes,
        /// The server's own time for it in milliseconds.
        milliseconds: u32,
    },
    /// Execute of MAPI over HTTP.
    Http {
        /// Always zero in this release of the protocol.
        flags: u32,
        /// The auxiliary buffer.
        auxiliary: Bytes,
    },
}

/// An answer that carries ROP responses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RpcResponse {
    /// The session.
    pub context: ContextHandle,
    /// The fields around the buffers.
    pub envelope: ResponseEnvelope,
    /// The ROP buffers. None if the call failed.
    pub buffers: Vec<PlainBuffer>,
    /// The result of the call, not of its ROPs: zero is success.
    pub result: u32,
}

impl RpcResponse {
    /// An answer to `request` made here.
    #[must_use]
    pub fn answering(request: &RpcRequest, buffers: Vec<PlainBuffer>) -> Self {
        let envelope = match &request.envelope {
            RequestEnvelope::Xp { out_max, .. } => ResponseEnvelope::Xp {
                most: u32::from(*out_max),
            },
            RequestEnvelope::Extended { .. } => ResponseEnvelope::Extended {
                flags: 0,
                auxiliary: Bytes::new(),
                milliseconds: 0,
            },
            RequestEnvelope::Http { .. } => ResponseEnvelope::Http {
                flags: 0,
                auxiliary: Bytes::new(),
            },
        };
        Self {
            context: request.context,
            envelope,
            buffers,
            result: 0,
        }
    }

    /// Reads the stub of an answer to EcDoRpc, EcDoRpcExt2 or Execute.
    ///
    /// # Errors
    /// [`EmsmdbError`] when it has another form.
    pub fn read(opnum: u16, stub: &Bytes) -> Result<Self, EmsmdbError> {
        if opnum == opnum::HTTP_EXECUTE {
            return execute::read_response(stub);
        }
        let mut reader = NdrReader::new(stub);
        let context = reader.context()?;
        let (envelope, buffers) = match opnum {
            opnum::RPC => {
                let (most, rgb) = reader.varying()?;
                if usize::from(reader.u16()?) != rgb.len() {
                    return Err(EmsmdbError::Contradiction("pcb"));
                }
                (ResponseEnvelope::Xp { most }, xp_buffers(&rgb))
            }
            opnum::RPC_EXT2 => {
                let flags = reader.u32()?;
                let (_, rgb) = reader.varying()?;
                let count = reader.u32()?;
                let (_, auxiliary) = reader.varying()?;
                let auxiliary_count = reader.u32()?;
                let milliseconds = reader.u32()?;
                if count as usize != rgb.len() || auxiliary_count as usize != auxiliary.len() {
                    return Err(EmsmdbError::Contradiction("pcbOut"));
                }
                let buffers = match rgb.is_empty() {
                    true => Vec::new(),
                    false => read_chain(&rgb)?,
                };
                let envelope = ResponseEnvelope::Extended {
                    flags,
                    auxiliary,
                    milliseconds,
                };
                (envelope, buffers)
            }
            _ => return Err(EmsmdbError::Contradiction("opnum")),
        };
        let result = reader.u32()?;
        reader.finish()?;
        Ok(Self {
            context,
            envelope,
            buffers,
            result,
        })
    }

    /// Writes the stub.
    #[must_use]
    pub fn write(&self) -> Bytes {
        let size: usize = self.buffers.iter().map(|one| one.bytes.len()).sum();
        let mut writer = NdrWriter::with_capacity(size + 96);
        writer.context(self.context);
        match &self.envelope {
            ResponseEnvelope::Xp { most } => {
                let rgb = xp_bytes(&self.buffers);
                writer.varying(*most, &rgb).u16(rgb.len() as u16);
            }
            ResponseEnvelope::Extended {
                flags,
                auxiliary,
                milliseconds,
            } => {
                let chain = match self.buffers.is_empty() {
                    true => Bytes::new(),
                    false => write_chain(&self.buffers),
                };
                let (length, auxiliary_length) = (chain.len() as u32, auxiliary.len() as u32);
                writer.u32(*flags).varying(length, &chain).u32(length);
                writer.varying(auxiliary_length, auxiliary);
                writer.u32(auxiliary_length).u32(*milliseconds);
            }
            ResponseEnvelope::Http { flags, auxiliary } => {
                return execute::write_response(self, *flags, auxiliary);
            }
        }
        writer.u32(self.result);
        writer.finish()
    }
}

fn xp_buffers(rgb: &Bytes) -> Vec<PlainBuffer> {
    if rgb.is_empty() {
        return Vec::new();
    }
    let mut plain = BytesMut::from(&rgb[..]);
    obfuscate(&mut plain);
    vec![PlainBuffer {
        flags: ExtendedFlags(ExtendedFlags::XOR_MAGIC | ExtendedFlags::LAST),
        bytes: plain.freeze(),
    }]
}

fn xp_bytes(buffers: &[PlainBuffer]) -> Bytes {
    let mut rgb = BytesMut::new();
    for buffer in buffers {
        rgb.extend_from_slice(&buffer.bytes);
    }
    obfuscate(&mut rgb);
    rgb.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buffer(flags: u16, bytes: &[u8]) -> PlainBuffer {
        PlainBuffer {
            flags: ExtendedFlags(flags),
            bytes: Bytes::copy_from_slice(bytes),
        }
    }

    fn context() -> ContextHandle {
        ContextHandle([7; 20])
    }

    #[test]
    fn xp_request_has_the_bytes_of_its_layout() {
        let request = RpcRequest {
            context: context(),
            envelope: RequestEnvelope::Xp {
                most: 0x7fff,
                out_max: 0x7fff,
            },
            buffers: vec![buffer(6, &[2, 0, 1])],
        };
        let stub = request.write();
        let mut expected = vec![7; 20];
        expected.extend([0xff, 0x7f, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0]);
        expected.extend([2 ^ 0xa5, 0xa5, 1 ^ 0xa5, 0, 3, 0, 0xff, 0x7f]);
        assert_eq!(stub, expected);
        assert_eq!(RpcRequest::read(opnum::RPC, &stub).unwrap(), request);
    }

    #[test]
    fn extended_request_reads_back_equal() {
        let request = RpcRequest {
            context: context(),
            envelope: RequestEnvelope::Extended {
                flags: CHAIN,
                out_max: 0x1_8008,
                auxiliary: Bytes::from_static(&[1, 2, 3]),
                auxiliary_max: AUXILIARY_MAX,
            },
            buffers: vec![buffer(2, &[9; 50]), buffer(7, &[3; 500])],
        };
        let stub = request.write();
        let again = RpcRequest::read(opnum::RPC_EXT2, &stub).unwrap();
        assert_eq!(again, request);
        assert_eq!(again.write(), stub);
    }

    #[test]
    fn responses_read_back_equal() {
        let samples = [
            (opnum::RPC, ResponseEnvelope::Xp { most: 0x7fff }, 6),
            (
                opnum::RPC_EXT2,
                ResponseEnvelope::Extended {
                    flags: 0,
                    auxiliary: Bytes::from_static(b"auxiliary"),
                    milliseconds: 12,
                },
                4,
            ),
        ];
        for (opnum, envelope, flags) in samples {
            let response = RpcResponse {
                context: context(),
                envelope,
                buffers: vec![buffer(flags, b"seven b")],
                result: 0,
            };
            let stub = response.write();
            let again = RpcResponse::read(opnum, &stub).unwrap();
            assert_eq!(again, response);
            for end in 0..stub.len() {
                assert!(RpcResponse::read(opnum, &stub.slice(..end)).is_err());
            }
        }
    }
}
