//! Tests of the WAN listener against strangers: half-open and refused handshakes.

use std::net::Ipv4Addr;

use tokio::net::TcpSocket;
use tokio::task::JoinSet;
use tokio_rustls::{TlsConnector, client};

use super::*;
use crate::config::NodeConfig;
use crate::mailbox::LoopMessage;

const PATIENCE: Duration = Duration::from_secs(20);

/// A listener for one test, the messages that it passes on, and the identity that it trusts.
struct ListenerFixture {
    address: SocketAddr,
    hub: Arc<NodeIdentity>,
    peer: Arc<NodeIdentity>,
    messages: tokio::sync::mpsc::Receiver<LoopMessage>,
    _state: [tempfile::TempDir; 2],
}

impl ListenerFixture {
    async fn new() -> Self {
        let state = [0, 1].map(|_| tempfile::tempdir().unwrap());
        let [hub, peer] = [0, 1].map(|own: usize| {
            let identity = NodeIdentity::load_or_create(state[own].path()).unwrap();
            Arc::new(identity)
        });
        let text = format!(
            "[node]\nname = \"hub\"\nstate_directory = {:?}\n[wan]\nlisten = \"127.0.0.1:1\"\n",
            state[0].path()
        );
        let config = NodeConfig::parse("node.toml".as_ref(), &text).unwrap();
        let trust = TrustedIdentities::default();
        trust.replace([(peer.node(), "branch".to_owned())].into());
        let (mailbox, messages) = LoopMailbox::new();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let listening = ListenerContext {
            handshakes: SHARING.places,
            identity: Arc::clone(&hub),
            trust,
            wan: config.wan,
            own_name: "hub".to_owned(),
            invitations: InvitationDirectory::new(state[0].path()),
            pins: PinDirectory::new(state[0].path()),
            numbers: LinkNumbers::default(),
            known: KnownSources::default(),
            mailbox,
            paired: Arc::default(),
        };
        tokio::spawn(async move { listen(listener, listening).await.unwrap() });
        Self {
            address,
            hub,
            peer,
            messages,
            _state: state,
        }
    }

    async fn connect(&self, from: Ipv4Addr) -> io::Result<TcpStream> {
        let socket = TcpSocket::new_v4()?;
        socket.bind((from, 0).into())?;
        socket.connect(self.address).await
    }

    /// One handshake, with no second try.
    async fn dial(
        &self,
        from: Ipv4Addr,
        identity: &NodeIdentity,
    ) -> io::Result<client::TlsStream<TcpStream>> {
        let stream = self.connect(from).await?;
        let tls = tls::client(identity, self.hub.node(), tls::SESSION).unwrap();
        let connector = TlsConnector::from(tls);
        connector.connect(tls::unchecked_name(), stream).await
    }
}

/// Sources of half-open handshakes.
fn stranger(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(127, 0, 9, number)
}

/// Silent strangers from 200 addresses, as often as the listener admits them, do not make a new
/// peer try twice, nor a returning one.
#[tokio::test]
async fn half_open_handshakes_do_not_exclude_peers() {
    let mut stand = ListenerFixture::new().await;
    let mut strangers = Vec::new();
    for _ in 0..2 {
        for number in 1..=200 {
            strangers.push(stand.connect(stranger(number)).await.unwrap());
        }
    }
    for _ in 0..2 {
        let peer = Arc::clone(&stand.peer);
        let dialled = stand.dial(Ipv4Addr::new(127, 0, 8, 1), &peer);
        let link = tokio::time::timeout(PATIENCE, dialled).await.unwrap();
        let announced = stand.messages.recv();
        let announced = tokio::time::timeout(PATIENCE, announced).await.unwrap();
        let Some(LoopMessage::LinkUp { peer: node, .. }) = announced else {
            panic!("{announced:?}");
        };
        assert_eq!(node, peer.node());
        drop(link.unwrap());
        while let Ok(Some(message)) = tokio::time::timeout(PATIENCE, stand.messages.recv()).await {
            if matches!(
                message,
                LoopMessage::Input(engine::EngineInput::LinkDown { .. })
            ) {
                break;
            }
        }
        // They come again, now that the peer is known.
        for number in 1..=200 {
            strangers.push(stand.connect(stranger(number)).await.unwrap());
        }
    }
    drop(strangers);
}

/// The first few hosts that cannot show a pinned key are logged.
#[tokio::test]
async fn refused_handshakes_are_summed_up() {
    let stand = Arc::new(ListenerFixture::new().await);
    let state = tempfile::tempdir().unwrap();
    let nobody = Arc::new(NodeIdentity::load_or_create(state.path()).unwrap());
    let mut tries = JoinSet::new();
    for number in 0..60_u8 {
        let (stand, nobody) = (Arc::clone(&stand), Arc::clone(&nobody));
        tries.spawn(async move {
            // In TLS 1.3 a client is done before it is refused; the end of the stream tells.
            let mut stream = stand.dial(stranger(number % 20), &nobody).await?;
            let mut room = [0];
            tokio::io::AsyncReadExt::read(&mut stream, &mut room).await
        });
    }
    while let Some(tried) = tries.join_next().await {
        assert!(!matches!(tried.unwrap(), Ok(1..)), "it was let in");
    }
    let (logged, counted) = repeats::REFUSED_IDENTITY.counts();
    assert!(logged <= repeats::LOGGED_FIRST && counted >= 60 - u64::from(logged));
}
