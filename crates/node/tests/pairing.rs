//! Pairing and TLS over loopback, between two state directories: the actions of a person, and the
//! errors for strangers.

#![allow(clippy::unwrap_used)]

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use node::identity::NodeIdentity;
use node::pairing::{
    self, ExchangeError, InvitationDirectory, InvitationToken, PinDirectory, TokenError,
};
use node::tls::{self, TrustedIdentities};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::{TlsAcceptor, TlsConnector};

struct PairingSite {
    state: tempfile::TempDir,
    identity: Arc<NodeIdentity>,
}

impl PairingSite {
    fn new() -> Self {
        let state = tempfile::tempdir().unwrap();
        let identity = Arc::new(NodeIdentity::load_or_create(state.path()).unwrap());
        Self { state, identity }
    }

    fn path(&self) -> &Path {
        self.state.path()
    }

    fn pins(&self) -> PinDirectory {
        PinDirectory::new(self.path())
    }

    fn invite(&self, now: SystemTime, address: SocketAddr) -> InvitationToken {
        InvitationDirectory::new(self.path())
            .invite(
                now,
                self.identity.node(),
                "hub",
                &address.to_string(),
                Some("branch"),
            )
            .unwrap()
    }

    async fn join(&self, token: &InvitationToken) -> Result<pairing::PairingResult, ExchangeError> {
        pairing::join(&self.identity, &self.pins(), "branch", "hub", token).await
    }
}

/// Answers joiners as a running node does, until the test ends.
async fn inviting(site: &PairingSite) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let acceptor = TlsAcceptor::from(tls::pairing_server(&site.identity).unwrap());
    let (identity, path) = (Arc::clone(&site.identity), site.path().to_owned());
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let Ok(mut stream) = acceptor.accept(stream).await else {
                continue;
            };
            let (invitations, pins) = (InvitationDirectory::new(&path), PinDirectory::new(&path));
            let _ = pairing::accept(&identity, &invitations, &pins, "hub", &mut stream).await;
        }
    });
    address
}

#[tokio::test]
async fn both_pin_each_other() {
    let (hub, branch) = (PairingSite::new(), PairingSite::new());
    let token = hub.invite(SystemTime::now(), inviting(&hub).await);
    let pasted = InvitationToken::parse(&token.to_string()).unwrap();
    let paired = branch.join(&pasted).await.unwrap();
    assert_eq!(paired.calls_itself, "hub");
    assert_eq!(
        branch.pins().load().unwrap()["hub"].node,
        hub.identity.node()
    );
    assert_eq!(
        hub.pins().load().unwrap()["branch"].node,
        branch.identity.node()
    );
}

#[tokio::test]
async fn reused_token_is_refused_and_pins_nobody() {
    let (hub, branch, thief) = (PairingSite::new(), PairingSite::new(), PairingSite::new());
    let token = hub.invite(SystemTime::now(), inviting(&hub).await);
    branch.join(&token).await.unwrap();
    let error = thief.join(&token).await.unwrap_err();
    assert!(matches!(error, ExchangeError::Used), "{error}");
    assert!(error.to_string().contains("used already"));
    assert!(thief.pins().load().unwrap().is_empty());
    assert_eq!(hub.pins().load().unwrap().len(), 1);
}

#[tokio::test]
async fn only_one_of_two_joiners_is_paired() {
    let (hub, one, two) = (PairingSite::new(), PairingSite::new(), PairingSite::new());
    let token = hub.invite(SystemTime::now(), inviting(&hub).await);
    let (first, second) = tokio::join!(one.join(&token), two.join(&token));
    assert!(first.is_ok() != second.is_ok());
    assert_eq!(hub.pins().load().unwrap().len(), 1);
}

#[tokio::test]
async fn expired_token_is_refused_on_both_sides() {
    let (hub, branch) = (PairingSite::new(), PairingSite::new());
    let address = inviting(&hub).await;
    let token = hub.invite(SystemTime::now() - Duration::from_secs(3600), address);
    let error = branch.join(&token).await.unwrap_err();
    assert!(
        matches!(error, ExchangeError::Token(TokenError::Expired)),
        "{error}"
    );
    // A joiner whose clock is wrong, or who lies about the expiry, is refused by the inviter.
    let hopeful = InvitationToken {
        expires: u64::MAX,
        ..token
    };
    let error = branch.join(&hopeful).await.unwrap_err();
    assert!(matches!(error, ExchangeError::Expired), "{error}");
    assert!(hub.pins().load().unwrap().is_empty());
}

#[tokio::test]
async fn wrong_secret_leaves_the_invitation_valid() {
    let (hub, branch) = (PairingSite::new(), PairingSite::new());
    let token = hub.invite(SystemTime::now(), inviting(&hub).await);
    let guessed = InvitationToken {
        secret: [0; 16],
        ..token.clone()
    };
    let error = branch.join(&guessed).await.unwrap_err();
    assert!(matches!(error, ExchangeError::Unknown), "{error}");
    branch.join(&token).await.unwrap();
}

#[tokio::test]
async fn an_impostor_at_the_inviters_address_learns_nothing() {
    let (hub, branch, impostor) = (PairingSite::new(), PairingSite::new(), PairingSite::new());
    let token = hub.invite(SystemTime::now(), inviting(&impostor).await);
    let error = branch.join(&token).await.unwrap_err();
    assert!(
        matches!(error, ExchangeError::NotTheInviter { .. }),
        "{error}"
    );
    assert!(branch.pins().load().unwrap().is_empty());
}

#[tokio::test]
async fn a_node_that_is_not_running_is_named() {
    let (hub, branch) = (PairingSite::new(), PairingSite::new());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let token = hub.invite(SystemTime::now(), address);
    let error = branch.join(&token).await.unwrap_err();
    assert!(
        error
            .to_string()
            .contains("check that the inviting node runs"),
        "{error}"
    );
}

/// Opens a link as the dialler does and reads the listener's first byte.
async fn open_link(
    dialer: &PairingSite,
    expected: &PairingSite,
    address: SocketAddr,
    protocol: &[u8],
) -> std::io::Result<u8> {
    let config = tls::client(&dialer.identity, expected.identity.node(), protocol).unwrap();
    let stream = TcpStream::connect(address).await?;
    let mut stream = TlsConnector::from(config)
        .connect(tls::unchecked_name(), stream)
        .await?;
    stream.read_u8().await
}

async fn accepting_sessions(site: &PairingSite, trust: TrustedIdentities) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let acceptor = TlsAcceptor::from(tls::session_server(&site.identity, trust).unwrap());
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            if let Ok(mut stream) = acceptor.accept(stream).await {
                let _ = stream.write_all(b"!").await;
                let _ = stream.shutdown().await;
            }
        }
    });
    address
}

#[tokio::test]
async fn only_pinned_identities_get_a_session() {
    let (hub, branch, stranger) = (PairingSite::new(), PairingSite::new(), PairingSite::new());
    let trust = TrustedIdentities::default();
    trust.replace([(branch.identity.node(), "branch".to_owned())].into());
    let address = accepting_sessions(&hub, trust.clone()).await;
    assert_eq!(
        open_link(&branch, &hub, address, tls::SESSION)
            .await
            .unwrap(),
        b'!'
    );
    assert!(
        open_link(&stranger, &hub, address, tls::SESSION)
            .await
            .is_err()
    );
    // The dialler pins as well: another node at the address is not spoken to.
    assert!(
        open_link(&branch, &stranger, address, tls::SESSION)
            .await
            .is_err()
    );
    // The protocol of pairing opens no session.
    assert!(
        open_link(&branch, &hub, address, tls::PAIRING)
            .await
            .is_err()
    );
    // Removing the pin revokes.
    trust.replace([].into());
    assert!(
        open_link(&branch, &hub, address, tls::SESSION)
            .await
            .is_err()
    );
}

#[tokio::test]
async fn a_client_without_a_certificate_gets_nothing() {
    let (hub, branch) = (PairingSite::new(), PairingSite::new());
    let trust = TrustedIdentities::default();
    trust.replace([(branch.identity.node(), "branch".to_owned())].into());
    let address = accepting_sessions(&hub, trust).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    let _ = tokio::time::timeout(Duration::from_secs(5), stream.read_to_end(&mut answer)).await;
    assert!(!answer.contains(&b'!'));
}
