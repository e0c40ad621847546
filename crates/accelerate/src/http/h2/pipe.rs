//! A socket that is two buffers in memory.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::shared::SharedHandle;

/// One end of it has the crate, the other one its user.
#[derive(Clone, Debug)]
pub(in crate::http) struct MemoryPipe(SharedHandle<PipeBuffers>);

#[derive(Debug, Default)]
struct PipeBuffers {
    input: VecDeque<Bytes>,
    is_finished: bool,
    output: Vec<u8>,
    /// Bytes that have moved in either direction.
    moved: u64,
}

impl Default for MemoryPipe {
    fn default() -> Self {
        Self(SharedHandle::new(PipeBuffers::default()))
    }
}

impl MemoryPipe {
    /// Adds bytes that the crate is to read.
    pub(in crate::http) fn push(&self, bytes: Bytes) {
        self.0.with(|buffers| buffers.input.push_back(bytes));
    }

    /// There is nothing to be read behind what was pushed.
    pub(in crate::http) fn finish(&self) {
        self.0.with(|buffers| buffers.is_finished = true);
    }

    /// Takes what the crate has written.
    pub(in crate::http) fn take_output(&self) -> Bytes {
        self.0
            .with(|buffers| std::mem::take(&mut buffers.output).into())
    }

    /// A count that grows with each byte that the crate reads or writes.
    pub(in crate::http) fn moved(&self) -> u64 {
        self.0.with(|buffers| buffers.moved)
    }
}

impl AsyncRead for MemoryPipe {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.0.with(|buffers| {
            let Some(first) = buffers.input.front_mut() else {
                return match buffers.is_finished {
                    true => Poll::Ready(Ok(())),
                    false => Poll::Pending,
                };
            };
            let length = first.len().min(into.remaining());
            into.put_slice(&first[..length]);
            first.advance(length);
            if first.is_empty() {
                buffers.input.pop_front();
            }
            buffers.moved += length as u64;
            Poll::Ready(Ok(()))
        })
    }
}

impl AsyncWrite for MemoryPipe {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.0.with(|buffers| {
            buffers.output.extend_from_slice(bytes);
            buffers.moved += bytes.len() as u64;
        });
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
