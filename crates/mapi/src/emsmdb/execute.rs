//! Execute of MAPI over HTTP ([MS-OXCMAPIHTTP] §2.2.4.2), the second call that carries Outlook 2003's
//! extended buffers.
//!
//! ```text
//!  request:  Flags │ RopBufferSize │ RopBuffer │ MaxRopOut │ AuxiliaryBufferSize │ AuxiliaryBuffer
//!  response: StatusCode │ ErrorCode │ Flags │ RopBufferSize │ RopBuffer │ AuxiliaryBufferSize │ AuxiliaryBuffer
//! ```
//! The body of a request has neither its session nor its identity: both are in fields of HTTP. The
//! machines take a *stub* with all three:
//!
//! ```text
//!  request:  session (20) │ form u8 = 0 │ length u8 │ X-RequestId │ body
//!            session (20) │ form u8 = 1 │ head of a request that is not read
//!  response: session (20) │ body
//! ```

use bytes::{BufMut, Bytes, BytesMut};

use super::extended::{PlainBuffer, read_chain, write_chain};
use super::rpc::{
    AUXILIARY_MAX, BUFFERS_MAX, RequestEnvelope, ResponseEnvelope, RpcRequest, RpcResponse,
};
use super::{ContextHandle, EmsmdbError};

/// Bytes of the context handle in front of a stub.
const CONTEXT: usize = 20;
/// The form of an Execute request that is read.
const EXECUTE: u8 = 0;
/// The form of any other request.
const PLAIN: u8 = 1;

/// The longest body of an Execute request: its fields, and both buffers with their limits.
pub const EXECUTE_MAX: usize = 20 + BUFFERS_MAX as usize + AUXILIARY_MAX as usize;
/// The longest X-RequestId that is kept: a GUID, a colon and a number of 32 bits.
pub const REQUEST_ID_MAX: usize = 64;

/// Takes little-endian fields from the front of a body.
struct ExecuteReader(Bytes);

impl ExecuteReader {
    fn u8(&mut self) -> Result<u8, EmsmdbError> {
        let value = *self.0.first().ok_or(EmsmdbError::Truncated)?;
        self.take(1)?;
        Ok(value)
    }

    fn u32(&mut self) -> Result<u32, EmsmdbError> {
        let value = *self.0.first_chunk().ok_or(EmsmdbError::Truncated)?;
        self.take(4)?;
        Ok(u32::from_le_bytes(value))
    }

    fn take(&mut self, length: usize) -> Result<Bytes, EmsmdbError> {
        match length <= self.0.len() {
            true => Ok(self.0.split_to(length)),
            false => Err(EmsmdbError::Truncated),
        }
    }

    fn context(&mut self) -> Result<ContextHandle, EmsmdbError> {
        let context = ContextHandle::of_stub(&self.0).ok_or(EmsmdbError::Truncated)?;
        self.take(CONTEXT)?;
        Ok(context)
    }

    /// A size, and as many bytes.
    fn sized(&mut self, most: u32, name: &'static str) -> Result<Bytes, EmsmdbError> {
        let size = self.u32()?;
        if size > most {
            return Err(EmsmdbError::Contradiction(name));
        }
        self.take(size as usize)
    }

    fn finish(&self) -> Result<(), EmsmdbError> {
        match self.0.len() {
            0 => Ok(()),
            more => Err(EmsmdbError::Trailing(more)),
        }
    }
}

/// The stub of an Execute request.
///
/// # Panics
/// When the X-RequestId is longer than [`REQUEST_ID_MAX`].
#[must_use]
pub fn execute_stub(context: ContextHandle, request_id: &[u8], body: &[u8]) -> Bytes {
    assert!(
        request_id.len() <= REQUEST_ID_MAX,
        "the caller has checked the length"
    );
    let mut stub = BytesMut::with_capacity(CONTEXT + 2 + request_id.len() + body.len());
    stub.put_slice(&context.0);
    stub.put_slice(&[EXECUTE, request_id.len() as u8]);
    stub.put_slice(request_id);
    stub.put_slice(body);
    stub.freeze()
}

/// The stub of a request that is not read. `None` is for requests outside all sessions.
#[must_use]
pub fn plain_stub(context: Option<ContextHandle>, head: &[u8]) -> Bytes {
    let mut stub = BytesMut::with_capacity(CONTEXT + 1 + head.len());
    stub.put_slice(&context.map_or([0; CONTEXT], |context| context.0));
    stub.put_u8(PLAIN);
    stub.put_slice(head);
    stub.freeze()
}

/// A stub in its parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HttpStub {
    /// An Execute request.
    Execute {
        /// Its X-RequestId; empty in requests that a client has not made.
        request_id: Bytes,
        /// Its body.
        body: Bytes,
    },
    /// The head of another request.
    Plain(Bytes),
}

/// Splits the stub of a request, whose session is [`ContextHandle::of_stub`].
///
/// # Errors
/// [`EmsmdbError`] when it has another form.
pub fn split_stub(stub: &Bytes) -> Result<HttpStub, EmsmdbError> {
    let mut reader = ExecuteReader(stub.clone());
    reader.context()?;
    match reader.u8()? {
        EXECUTE => {
            let length = usize::from(reader.u8()?);
            if length > REQUEST_ID_MAX {
                return Err(EmsmdbError::Contradiction("X-RequestId"));
            }
            let request_id = reader.take(length)?;
            let body = reader.0;
            Ok(HttpStub::Execute { request_id, body })
        }
        PLAIN => Ok(HttpStub::Plain(reader.0)),
        _ => Err(EmsmdbError::Contradiction("form")),
    }
}

/// The stub of an answer.
#[must_use]
pub fn answer_stub(context: ContextHandle, body: &[u8]) -> Bytes {
    [&context.0[..], body].concat().into()
}

/// The body in the stub of an answer.
#[must_use]
pub fn answer_body(stub: &Bytes) -> Bytes {
    stub.slice(CONTEXT.min(stub.len())..)
}

/// True if this body says that the server has carried out the call ([MS-OXCMAPIHTTP] §2.2.4.2.2,
/// Execute Request Type Success Response Body), and can be read.
#[must_use]
pub fn is_success(body: &Bytes) -> bool {
    read_response(&answer_stub(ContextHandle([0; CONTEXT]), body))
        .is_ok_and(|response| response.result == 0)
}

/// The stub of an answer that says that the call failed with this result.
#[must_use]
pub fn failed_stub(context: ContextHandle, result: u32) -> Bytes {
    let failed = RpcResponse {
        context,
        envelope: ResponseEnvelope::Http {
            flags: 0,
            auxiliary: Bytes::new(),
        },
        buffers: Vec::new(),
        result,
    };
    failed.write()
}

pub(super) fn read_request(stub: &Bytes) -> Result<RpcRequest, EmsmdbError> {
    let HttpStub::Execute { request_id, body } = split_stub(stub)? else {
        return Err(EmsmdbError::Contradiction("form"));
    };
    let context = ContextHandle::of_stub(stub).ok_or(EmsmdbError::Truncated)?;
    let mut reader = ExecuteReader(body);
    let flags = reader.u32()?;
    let chain = reader.sized(BUFFERS_MAX, "RopBufferSize")?;
    let out_max = reader.u32()?;
    if out_max > BUFFERS_MAX {
        return Err(EmsmdbError::Contradiction("MaxRopOut"));
    }
    let auxiliary = reader.sized(AUXILIARY_MAX, "AuxiliaryBufferSize")?;
    reader.finish()?;
    Ok(RpcRequest {
        context,
        envelope: RequestEnvelope::Http {
            flags,
            out_max,
            auxiliary,
            request_id,
        },
        buffers: read_chain(&chain)?,
    })
}

/// Writes the fields of a request's stub behind its context handle.
pub(super) fn write_request(
    context: ContextHandle,
    request_id: &[u8],
    flags: u32,
    out_max: u32,
    buffers: &[PlainBuffer],
    auxiliary: &[u8],
) -> Bytes {
    let chain = write_chain(buffers);
    let mut body = BytesMut::with_capacity(chain.len() + auxiliary.len() + 16);
    body.put_u32_le(flags);
    put_sized(&mut body, &chain);
    body.put_u32_le(out_max);
    put_sized(&mut body, auxiliary);
    execute_stub(context, request_id, &body)
}

pub(super) fn read_response(stub: &Bytes) -> Result<RpcResponse, EmsmdbError> {
    let mut reader = ExecuteReader(stub.clone());
    let context = reader.context()?;
    if reader.u32()? != 0 {
        return Err(EmsmdbError::Contradiction("StatusCode"));
    }
    let result = reader.u32()?;
    let flags = reader.u32()?;
    let chain = reader.sized(BUFFERS_MAX, "RopBufferSize")?;
    let auxiliary = reader.sized(AUXILIARY_MAX, "AuxiliaryBufferSize")?;
    reader.finish()?;
    let buffers = match chain.is_empty() {
        true => Vec::new(),
        false => read_chain(&chain)?,
    };
    Ok(RpcResponse {
        context,
        envelope: ResponseEnvelope::Http { flags, auxiliary },
        buffers,
        result,
    })
}

/// Writes the stub of an answer.
pub(super) fn write_response(response: &RpcResponse, flags: u32, auxiliary: &[u8]) -> Bytes {
    let chain = match response.buffers.is_empty() {
        true => Bytes::new(),
        false => write_chain(&response.buffers),
    };
    let mut stub = BytesMut::with_capacity(CONTEXT + chain.len() + auxiliary.len() + 20);
    stub.put_slice(&response.context.0);
    stub.put_u32_le(0);
    stub.put_u32_le(response.result);
    stub.put_u32_le(flags);
    put_sized(&mut stub, &chain);
    put_sized(&mut stub, auxiliary);
    stub.freeze()
}

fn put_sized(body: &mut BytesMut, bytes: &[u8]) {
    body.put_u32_le(bytes.len() as u32);
    body.put_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::emsmdb::{ExtendedFlags, opnum};

    const CONTEXT_OF_TEST: ContextHandle = ContextHandle([7; CONTEXT]);

    fn request() -> RpcRequest {
        RpcRequest {
            context: CONTEXT_OF_TEST,
            envelope: RequestEnvelope::Http {
                flags: 3,
                out_max: 0x8008,
                auxiliary: Bytes::from_static(b"aux"),
                request_id: Bytes::from_static(b"{A}:7"),
            },
            buffers: vec![PlainBuffer {
                flags: ExtendedFlags(ExtendedFlags::LAST),
                bytes: Bytes::from_static(&[2, 0, 1]),
            }],
        }
    }

    #[test]
    fn request_has_the_bytes_of_its_layout() {
        let stub = request().write();
        let body: &[u8] = &[
            3, 0, 0, 0, // Flags
            11, 0, 0, 0, // RopBufferSize
            0, 0, 4, 0, 3, 0, 3, 0, 2, 0, 1, // RPC_HEADER_EXT and the ROP buffer
            8, 0x80, 0, 0, // MaxRopOut
            3, 0, 0, 0, b'a', b'u', b'x',
        ];
        assert_eq!(stub, execute_stub(CONTEXT_OF_TEST, b"{A}:7", body));
        let again = RpcRequest::read(opnum::HTTP_EXECUTE, &stub).unwrap();
        assert_eq!(again, request());
        for end in 0..stub.len() {
            assert!(RpcRequest::read(opnum::HTTP_EXECUTE, &stub.slice(..end)).is_err());
        }
    }

    #[test]
    fn plain_request_is_never_read_as_execute() {
        let head = b"POST /mapi/emsmdb/ HTTP/1.1\r\nHost: mail\r\n\r\n";
        let stub = plain_stub(Some(CONTEXT_OF_TEST), head);
        assert!(RpcRequest::read(opnum::HTTP_EXECUTE, &stub).is_err());
        let head = Bytes::from_static(head);
        assert_eq!(split_stub(&stub).unwrap(), HttpStub::Plain(head));
        assert_eq!(ContextHandle::of_stub(&stub), Some(CONTEXT_OF_TEST));
    }

    #[test]
    fn responses_read_back_equal() {
        let response = RpcResponse::answering(
            &request(),
            vec![PlainBuffer {
                flags: ExtendedFlags(ExtendedFlags::XOR_MAGIC | ExtendedFlags::LAST),
                bytes: Bytes::from_static(&[2, 0]),
            }],
        );
        let stub = response.write();
        let again = RpcResponse::read(opnum::HTTP_EXECUTE, &stub).unwrap();
        assert_eq!(again, response);
        assert!(is_success(&answer_body(&stub)));
        for end in 0..stub.len() {
            assert!(RpcResponse::read(opnum::HTTP_EXECUTE, &stub.slice(..end)).is_err());
        }
        let failed = failed_stub(CONTEXT_OF_TEST, 5);
        let read = RpcResponse::read(opnum::HTTP_EXECUTE, &failed).unwrap();
        assert_eq!((read.result, read.buffers.len()), (5, 0));
        assert!(!is_success(&answer_body(&failed)));
        let mut failed = stub.to_vec();
        failed[CONTEXT] = 1;
        assert!(!is_success(&answer_body(&failed.into())));
    }
}
