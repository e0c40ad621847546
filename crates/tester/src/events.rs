//! Events of the threads that carry out long outputs, for the thread that owns the machine.
//!
//! That thread waits for its sockets and for the events at once, so an event also makes a socket
//! readable.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

/// Sending half; each thread has its own.
#[derive(Debug)]
pub(super) struct EventSender<T> {
    channel: Sender<T>,
    wake: Arc<UnixStream>,
}

impl<T> Clone for EventSender<T> {
    fn clone(&self) -> Self {
        Self {
            channel: self.channel.clone(),
            wake: self.wake.clone(),
        }
    }
}

impl<T> EventSender<T> {
    /// Sends an event; tells whether anybody waits for it.
    pub(super) fn send(&self, event: T) -> bool {
        let is_sent = self.channel.send(event).is_ok();
        // A full socket is readable already.
        let _ = (&*self.wake).write(&[1]);
        is_sent
    }
}

/// Receiving half.
#[derive(Debug)]
pub(super) struct EventReceiver<T> {
    channel: Receiver<T>,
    wake: UnixStream,
}

impl<T> EventReceiver<T> {
    /// The next event.
    pub(super) fn poll(&self) -> Option<T> {
        self.channel.try_recv().ok()
    }

    /// Makes the socket unreadable; do this before the events are polled.
    pub(super) fn clear(&self) {
        let mut bytes = [0; 64];
        while matches!((&self.wake).read(&mut bytes), Ok(count) if count == bytes.len()) {}
    }
}

impl<T> AsFd for EventReceiver<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

/// A pair of halves.
///
/// # Errors
/// Fails when the system gives no sockets.
pub(super) fn events<T>() -> io::Result<(EventSender<T>, EventReceiver<T>)> {
    let (channel_in, channel_out) = channel();
    let (wake_in, wake_out) = UnixStream::pair()?;
    wake_in.set_nonblocking(true)?;
    wake_out.set_nonblocking(true)?;
    let sender = EventSender {
        channel: channel_in,
        wake: Arc::new(wake_in),
    };
    let receiver = EventReceiver {
        channel: channel_out,
        wake: wake_out,
    };
    Ok((sender, receiver))
}
