//! Name resolution for a command that does not share the host's loopback device.
//!
//! ```text
//!   command ──► gateway:53 ═ link ═► forwarder ──► 127.0.0.53
//! ```
//! A resolver at an ordinary address is reached through the link like anything else, and nothing
//! is done. One at a loopback or link-local address (systemd-resolved, dnsmasq) belongs to the
//! host alone: there the command gets an `/etc/resolv.conf` that names the gateway instead, and
//! questions that arrive at the gateway, having crossed the link, are put to the host's resolver,
//! over UDP and TCP. What a question says is not looked at.
//!
//! Programs that ask a local service by a Unix socket (nss-resolve, nscd) get their answers
//! without crossing the link.

use std::io;
use std::net::{
    IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs,
    UdpSocket,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

/// The port of DNS.
const PORT: u16 = 53;

/// Questions under way at once; one beyond is dropped, and its asker asks again.
const QUESTIONS_MAX: usize = 64;

/// Time limit for an answer: the timeout of resolv.conf(5).
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// The longest DNS message over UDP, whatever EDNS says.
const MESSAGE_MAX: usize = 65_535;

/// Interval at which a forwarder checks whether it should end.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(200);

/// Name servers that resolv.conf lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ResolverConfig {
    /// The host's own, which the command cannot reach, as they are written there.
    pub(super) local: Vec<String>,
    rest: Vec<String>,
}

impl ResolverConfig {
    /// Reads resolv.conf(5).
    pub(super) fn parse(text: &str) -> Self {
        let mut local = Vec::new();
        let mut rest = Vec::new();
        for line in text.lines() {
            match nameserver(line) {
                Some(address) if is_local(address) => local.push(address.to_owned()),
                _ => rest.push(line.to_owned()),
            }
        }
        Self { local, rest }
    }

    /// The same with the host's own resolvers replaced by the gateway.
    pub(super) fn text_with(&self, gateway: Ipv4Addr) -> String {
        let mut text = format!("nameserver {gateway}\n");
        for line in &self.rest {
            text += line;
            text.push('\n');
        }
        text
    }
}

fn nameserver(line: &str) -> Option<&str> {
    let mut words = line.split_whitespace();
    (words.next()? == "nameserver").then(|| words.next())?
}

/// Tells whether only the host itself can reach this address.
fn is_local(address: &str) -> bool {
    let plain = address.split('%').next().unwrap_or_default();
    match plain.parse() {
        Ok(IpAddr::V4(address)) => {
            address.is_loopback() || address.is_unspecified() || address.is_link_local()
        }
        Ok(IpAddr::V6(address)) => {
            address.is_loopback()
                || address.is_unspecified()
                || address.segments()[0] & 0xffc0 == 0xfe80
        }
        Err(_) => false,
    }
}

/// The sockets of a forwarder, bound on the gateway's side.
#[derive(Debug)]
pub(super) struct ForwarderSockets {
    questions: UdpSocket,
    connections: TcpListener,
}

/// Takes the gateway's port; to be called where the gateway is.
pub(super) fn listen(gateway: Ipv4Addr) -> io::Result<ForwarderSockets> {
    Ok(ForwarderSockets {
        questions: UdpSocket::bind((gateway, PORT))?,
        connections: TcpListener::bind((gateway, PORT))?,
    })
}

/// Passes questions to the host's resolver until dropped.
#[derive(Debug)]
pub(super) struct DnsForwarder {
    is_wanted: Arc<AtomicBool>,
    threads: Vec<thread::JoinHandle<()>>,
}

impl DnsForwarder {
    /// Starts forwarding queries to the resolver at `upstream`; it must be called in that
    /// resolver's namespace.
    pub(super) fn start(listening: ForwarderSockets, upstream: &str) -> io::Result<Self> {
        // An address may carry the device that it is meant on, which std leaves to the system.
        let upstream = (upstream, PORT).to_socket_addrs()?.next();
        Self::start_towards(listening, upstream.ok_or(io::ErrorKind::InvalidInput)?)
    }

    fn start_towards(listening: ForwarderSockets, upstream: SocketAddr) -> io::Result<Self> {
        let ForwarderSockets {
            questions,
            connections,
        } = listening;
        questions.set_read_timeout(Some(LOOK_AGAIN_AFTER))?;
        connections.set_nonblocking(true)?;
        let is_wanted = Arc::new(AtomicBool::new(true));
        let wanted = Arc::clone(&is_wanted);
        let udp = thread::Builder::new()
            .name("dns-udp".to_owned())
            .spawn(move || pass_questions(Arc::new(questions), upstream, &wanted))?;
        let wanted = Arc::clone(&is_wanted);
        let tcp = thread::Builder::new()
            .name("dns-tcp".to_owned())
            .spawn(move || pass_connections(&connections, upstream, &wanted))?;
        Ok(Self {
            is_wanted,
            threads: vec![udp, tcp],
        })
    }
}

impl Drop for DnsForwarder {
    fn drop(&mut self) {
        self.is_wanted.store(false, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // A panic in it has ended the forwarding, and its message stands in the log.
            let _ = thread.join();
        }
    }
}

/// One of [`QUESTIONS_MAX`] places, given back when dropped.
struct QuestionPermit(Arc<AtomicUsize>);

impl QuestionPermit {
    fn take(taken: &Arc<AtomicUsize>) -> Option<Self> {
        let before = taken.fetch_add(1, Ordering::Relaxed);
        let place = Self(Arc::clone(taken));
        (before < QUESTIONS_MAX).then_some(place)
    }
}

impl Drop for QuestionPermit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn pass_questions(questions: Arc<UdpSocket>, upstream: SocketAddr, is_wanted: &AtomicBool) {
    let taken = Arc::new(AtomicUsize::new(0));
    let mut buffer = vec![0; MESSAGE_MAX];
    while is_wanted.load(Ordering::Relaxed) {
        let Ok((length, asker)) = questions.recv_from(&mut buffer) else {
            continue;
        };
        let Some(place) = QuestionPermit::take(&taken) else {
            continue;
        };
        let question = buffer[..length].to_vec();
        let questions = Arc::clone(&questions);
        // Where no thread can be had, the question is lost as a packet may be.
        let _ = thread::Builder::new()
            .name("dns-question".to_owned())
            .spawn(move || {
                let _place = place;
                match ask(&question, upstream) {
                    Ok(answer) => drop(questions.send_to(&answer, asker)),
                    Err(error) => tracing::debug!(%upstream, %error, "no answer"),
                }
            });
    }
}

fn ask(question: &[u8], upstream: SocketAddr) -> io::Result<Vec<u8>> {
    let any: IpAddr = match upstream {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(upstream)?;
    socket.set_read_timeout(Some(ANSWER_WITHIN))?;
    socket.send(question)?;
    let mut answer = vec![0; MESSAGE_MAX];
    let length = socket.recv(&mut answer)?;
    answer.truncate(length);
    Ok(answer)
}

fn pass_connections(connections: &TcpListener, upstream: SocketAddr, is_wanted: &AtomicBool) {
    let taken = Arc::new(AtomicUsize::new(0));
    while is_wanted.load(Ordering::Relaxed) {
        let Ok((asker, _)) = connections.accept() else {
            thread::sleep(LOOK_AGAIN_AFTER / 10);
            continue;
        };
        let Some(place) = QuestionPermit::take(&taken) else {
            continue;
        };
        let _ = thread::Builder::new()
            .name("dns-connection".to_owned())
            .spawn(move || {
                let _place = place;
                if let Err(error) = join(&asker, upstream) {
                    tracing::debug!(%upstream, %error, "no answer over TCP");
                }
            });
    }
}

/// Copies both ways until both sides have ended.
fn join(asker: &TcpStream, upstream: SocketAddr) -> io::Result<()> {
    asker.set_nonblocking(false)?;
    let answerer = TcpStream::connect_timeout(&upstream, ANSWER_WITHIN)?;
    for side in [asker, &answerer] {
        side.set_read_timeout(Some(ANSWER_WITHIN))?;
        side.set_write_timeout(Some(ANSWER_WITHIN))?;
    }
    let (mut from_asker, mut to_answerer) = (asker.try_clone()?, answerer.try_clone()?);
    thread::scope(|scope| {
        scope.spawn(move || {
            // A side that falls silent or breaks off ends its half.
            let _ = io::copy(&mut from_asker, &mut to_answerer);
            let _ = to_answerer.shutdown(Shutdown::Write);
        });
        let _ = io::copy(&mut &answerer, &mut &*asker);
        let _ = asker.shutdown(Shutdown::Write);
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    const GATEWAY: Ipv4Addr = Ipv4Addr::new(198, 19, 0, 1);

    #[test]
    fn resolver_reachable_through_the_link_is_kept() {
        let resolvers = ResolverConfig::parse("search example\nnameserver 192.0.2.53\n");
        assert!(resolvers.local.is_empty());
    }

    #[test]
    fn local_resolver_is_replaced_by_the_gateway() {
        let text = "# made by hand\nnameserver 127.0.0.53\nnameserver fe80::1%eth0\n\
                    nameserver 192.0.2.53\noptions edns0\n";
        let resolvers = ResolverConfig::parse(text);
        assert_eq!(resolvers.local, ["127.0.0.53", "fe80::1%eth0"]);
        assert_eq!(
            resolvers.text_with(GATEWAY),
            "nameserver 198.19.0.1\n# made by hand\nnameserver 192.0.2.53\noptions edns0\n"
        );
    }

    #[test]
    fn dns_messages_pass_unchanged_over_udp_and_tcp() {
        let resolver = UdpSocket::bind("127.0.0.1:0").unwrap();
        let upstream = resolver.local_addr().unwrap();
        let resolver_tcp = TcpListener::bind(upstream).unwrap();
        let listening = ForwarderSockets {
            questions: UdpSocket::bind("127.0.0.1:0").unwrap(),
            connections: TcpListener::bind("127.0.0.1:0").unwrap(),
        };
        let udp = listening.questions.local_addr().unwrap();
        let tcp = listening.connections.local_addr().unwrap();
        let _forwarder = DnsForwarder::start_towards(listening, upstream).unwrap();

        let asker = UdpSocket::bind("127.0.0.1:0").unwrap();
        asker.send_to(b"question", udp).unwrap();
        let mut buffer = [0; 64];
        let (length, forwarder) = resolver.recv_from(&mut buffer).unwrap();
        assert_eq!(&buffer[..length], b"question");
        resolver.send_to(b"answer", forwarder).unwrap();
        let (length, from) = asker.recv_from(&mut buffer).unwrap();
        assert_eq!((&buffer[..length], from), (&b"answer"[..], udp));

        let mut asker = TcpStream::connect(tcp).unwrap();
        asker.write_all(b"question").unwrap();
        asker.shutdown(Shutdown::Write).unwrap();
        let (mut served, _) = resolver_tcp.accept().unwrap();
        let mut question = Vec::new();
        served.read_to_end(&mut question).unwrap();
        assert_eq!(question, b"question");
        served.write_all(b"answer").unwrap();
        drop(served);
        let mut answer = Vec::new();
        asker.read_to_end(&mut answer).unwrap();
        assert_eq!(answer, b"answer");
    }
}
