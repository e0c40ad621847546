//! The loop with real sockets.
//!
//! Direct connections never go to this machine itself, so these tests run in a network namespace of
//! their own, where addresses of the loopback device look like another host's: the route to them
//! names another source.

mod killed_node;

use std::env;
use std::path::Path;
use std::process::Command;
use std::thread;

use engine::ArrivalMethod;
use socket2::{Domain, SockRef, Socket, Type};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::connections::ConnectionNumbers;
use crate::descriptors::DescriptorBudget;

/// The variable that marks a test inside a namespace of its own.
const INSIDE: &str = "TRUNKLINE_TEST_INSIDE";
/// The time after which a test stops waiting.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);

const NODE: &str = "[node]\nname = \"near\"\n[intercept]\nmode = \"off\"\n\
    [proxy]\nsocks5 = \"127.0.0.1:1080\"\n[dictionary]\ndisk = \"0B\"\n";

/// Runs the test of this name again in a network namespace of its own, or `body` if it is already
/// there.
fn in_namespace(name: &str, body: impl FnOnce()) {
    if env::var_os(INSIDE).is_some() {
        return body();
    }
    let setup =
        "ip link set lo up && ip route add local 198.18.7.0/24 dev lo src 127.0.0.1 && exec \"$@\"";
    let program = env::current_exe().unwrap();
    let output = Command::new("unshare")
        .args(["--map-root-user", "--net", "sh", "-c", setup, "sh"])
        .arg(program)
        .args(["--exact", "--nocapture", name])
        .env(INSIDE, "1")
        .output();
    let output = output.unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    if said.contains("unshare failed") {
        println!("SKIPPED: no network namespace can be made: {said}");
        return;
    }
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{told}{said}");
    assert!(told.contains("1 passed"), "{told}");
}

pub(super) fn parts(
    state: &Path,
    descriptors: DescriptorPool,
    mailbox: LoopMailbox,
) -> EventLoopParts {
    let config = NodeConfig::parse(Path::new("near.toml"), NODE).unwrap();
    EventLoopParts {
        descriptors,
        identity: Arc::new(NodeIdentity::load_or_create(state).unwrap()),
        pins: PinDirectory::new(state),
        trust: TrustedIdentities::default(),
        numbers: LinkNumbers::default(),
        known: KnownSources::default(),
        path_memory: PathMemory::load(state, SystemTime::now()),
        disk: thread_mpsc::channel().0,
        files: FilesThread::start(state, mailbox.clone()).unwrap(),
        intercept: None,
        surroundings: surroundings::SurroundingsWatch::new(Vec::new(), mailbox.clone()),
        spoofed_blocked: watch::channel(intercept::SpoofedBlocked::default()).1,
        udp: None,
        runtime: tokio::runtime::Handle::current(),
        heart: WatchdogHeartbeat::default(),
        dictionary_key: None,
        seed: 1,
        config,
        mailbox,
    }
}

/// A server whose kernel takes a few kilobytes of unread data.
pub(super) fn narrow_server(address: &str) -> TcpListener {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.set_recv_buffer_size(1).unwrap();
    socket.set_nonblocking(true).unwrap();
    let address: SocketAddr = address.parse().unwrap();
    socket.bind(&address.into()).unwrap();
    socket.listen(16).unwrap();
    TcpListener::from_std(socket.into()).unwrap()
}

/// Waits until the loop has so many connections.
async fn connections_are(mailbox: &LoopMailbox, count: u64) {
    while mailbox.ask(OperatorQuestion::Status).await.unwrap()["connections"] != count {
        tokio::task::yield_now().await;
    }
}

/// A client vanishes, and its server does not read its data: the connection to the server remains,
/// and so do its descriptors.
async fn client_that_vanishes() {
    const BYTES: usize = 64 * 1024;
    let state = tempfile::tempdir().unwrap();
    let descriptors = DescriptorPool::new(DescriptorBudget {
        pool: 2,
        flows: 1,
        disk_files: 1,
        handshakes: 1,
        probes: 1,
    });
    let (mailbox, messages) = LoopMailbox::new();
    let parts = parts(state.path(), descriptors.clone(), mailbox.clone());
    let event_loop = EventLoop::new(parts).unwrap();
    let running = event_loop.run(messages, PreciseAlarm::new().unwrap());
    let test = async {
        let server = narrow_server("198.18.7.1:0");
        let proxy = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(proxy.local_addr().unwrap())
            .await
            .unwrap();
        let (accepted, address) = proxy.accept().await.unwrap();
        let here = tokio::runtime::Handle::current();
        let connections = ConnectionNumbers::new(here, descriptors.clone());
        let taken = connections.descriptors().await;
        let to = server.local_addr().unwrap();
        let (early, via) = (Bytes::new(), ArrivalMethod::Socks5);
        connections.accepted((accepted, taken), early, address, to, via, &mailbox);
        let (served, _) = server.accept().await.unwrap();
        client.write_all(&[b'x'; BYTES]).await.unwrap();
        SockRef::from(&client)
            .set_linger(Some(Duration::ZERO))
            .unwrap();
        drop(client);
        connections_are(&mailbox, 1).await;
        assert_eq!(
            descriptors.left(),
            0,
            "the connection to the server has none"
        );

        drop(served);
        connections_are(&mailbox, 0).await;
        // Its task ends with what it tells the loop.
        while descriptors.left() < 2 {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        () = running => panic!("the loop has ended"),
        () = test => {}
    }
}

#[test]
fn direct_connection_holds_descriptors_until_both_close() {
    let name = "event_loop::tests::direct_connection_holds_descriptors_until_both_close";
    in_namespace(name, || {
        let test = || {
            let runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = { runtime }.enable_all().build().unwrap();
            runtime.block_on(async {
                let test = client_that_vanishes();
                tokio::time::timeout(PATIENCE, test).await.unwrap();
            });
        };
        thread::spawn(test).join().unwrap();
    });
}
