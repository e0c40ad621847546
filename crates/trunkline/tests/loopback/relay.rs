//! Relay between the nodes: it forwards TCP connections, and UDP packets from a port of its own.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// Interval at which a thread checks whether it should end.
const LOOK: Duration = Duration::from_millis(20);

/// A relay between the near node and an address of the far one with the same port.
pub(super) struct NodeRelay {
    state: Arc<RelayState>,
}

struct RelayState {
    far: SocketAddr,
    is_over: AtomicBool,
    takes_links: AtomicBool,
    /// The near node's ends of the TCP connections.
    near_links: Mutex<Vec<TcpStream>>,
    /// Socket to which the near node sends, and the address that it last sent from.
    inner: UdpSocket,
    near: Mutex<Option<SocketAddr>>,
    /// One towards the far node after the other; the last is in use.
    outer: Mutex<Vec<OuterSocket>>,
}

struct OuterSocket {
    socket: UdpSocket,
    /// Packets that came back to it.
    came_back: u64,
}

impl NodeRelay {
    pub(super) fn new(at: SocketAddr, far: SocketAddr) -> Self {
        let listener = TcpListener::bind(at).unwrap();
        listener.set_nonblocking(true).unwrap();
        let inner = UdpSocket::bind(at).unwrap();
        inner.set_read_timeout(Some(LOOK)).unwrap();
        let relay = Self {
            state: Arc::new(RelayState {
                far,
                is_over: AtomicBool::new(false),
                takes_links: AtomicBool::new(true),
                near_links: Mutex::default(),
                inner,
                near: Mutex::default(),
                outer: Mutex::default(),
            }),
        };
        relay.rebind();
        let state = Arc::clone(&relay.state);
        thread::spawn(move || state.accept(&listener));
        let state = Arc::clone(&relay.state);
        thread::spawn(move || state.pass_out());
        relay
    }

    /// Sends the near node's packets from another port from now on; packets to the old port are
    /// dropped.
    pub(super) fn rebind(&self) {
        let socket = UdpSocket::bind(("127.0.0.1", 0)).unwrap();
        socket.set_read_timeout(Some(LOOK)).unwrap();
        let reader = socket.try_clone().unwrap();
        let mut outer = self.state.outer.lock().unwrap();
        outer.push(OuterSocket {
            socket,
            came_back: 0,
        });
        let index = outer.len() - 1;
        let state = Arc::clone(&self.state);
        thread::spawn(move || state.pass_in(&reader, index));
    }

    /// Packets that came back to each port that was used, in the order of their use.
    pub(super) fn by_port(&self) -> Vec<u64> {
        let outer = self.state.outer.lock().unwrap();
        outer.iter().map(|outer| outer.came_back).collect()
    }

    /// Address of the far node.
    pub(super) fn far(&self) -> SocketAddr {
        self.state.far
    }

    /// The near node's links end, and it gets no new ones; the far node hears nothing of it.
    pub(super) fn break_near_links(&self) {
        self.state.takes_links.store(false, Ordering::SeqCst);
        for link in self.state.near_links.lock().unwrap().iter() {
            let _ = link.shutdown(Shutdown::Both);
        }
    }
}

impl Drop for NodeRelay {
    fn drop(&mut self) {
        self.state.is_over.store(true, Ordering::SeqCst);
    }
}

impl RelayState {
    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst)
    }

    fn accept(self: Arc<Self>, listener: &TcpListener) {
        while !self.is_over() {
            let Ok((near, _)) = listener.accept() else {
                thread::sleep(LOOK);
                continue;
            };
            let far = TcpStream::connect(self.far).ok();
            let Some(far) = far.filter(|_| self.takes_links.load(Ordering::SeqCst)) else {
                continue;
            };
            near.set_nonblocking(false).unwrap();
            let ways = [
                (near.try_clone().unwrap(), far.try_clone().unwrap()),
                (far, near.try_clone().unwrap()),
            ];
            self.near_links.lock().unwrap().push(near);
            for (from, to) in ways {
                let state = Arc::clone(&self);
                thread::spawn(move || state.carry(from, to));
            }
        }
    }

    /// One way of a TCP connection. A way that ends while links are not taken ends for one side alone.
    fn carry(&self, mut from: TcpStream, mut to: TcpStream) {
        from.set_read_timeout(Some(LOOK)).unwrap();
        let mut buffer = vec![0; 64 << 10];
        while !self.is_over() {
            match from.read(&mut buffer) {
                Ok(0) => break,
                Ok(length) if to.write_all(&buffer[..length]).is_ok() => {}
                Ok(_) => break,
                Err(error) if is_patience(&error) => {}
                Err(_) => break,
            }
        }
        while !self.is_over() && !self.takes_links.load(Ordering::SeqCst) {
            thread::sleep(LOOK);
        }
        let _ = to.shutdown(Shutdown::Both);
    }

    fn pass_out(&self) {
        let mut buffer = vec![0; 64 << 10];
        while !self.is_over() {
            let Ok((length, from)) = self.inner.recv_from(&mut buffer) else {
                continue;
            };
            *self.near.lock().unwrap() = Some(from);
            let outer = self.outer.lock().unwrap();
            if let Some(outer) = outer.last() {
                let _ = outer.socket.send_to(&buffer[..length], self.far);
            }
        }
    }

    fn pass_in(&self, reader: &UdpSocket, index: usize) {
        let mut buffer = vec![0; 64 << 10];
        while !self.is_over() {
            let received = reader.recv_from(&mut buffer);
            let mut outer = self.outer.lock().unwrap();
            if index + 1 < outer.len() {
                return;
            }
            let (Ok((length, _)), Some(near)) = (received, *self.near.lock().unwrap()) else {
                continue;
            };
            outer[index].came_back += 1;
            drop(outer);
            let _ = self.inner.send_to(&buffer[..length], near);
        }
    }
}

fn is_patience(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{TimedOut, WouldBlock};
    matches!(error.kind(), WouldBlock | TimedOut)
}
