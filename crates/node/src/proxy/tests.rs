//! Proxies with clients on real sockets; a loop that declines everything takes the engine's place.

use tokio::runtime::Handle;

use super::*;
use crate::descriptors::{DescriptorBudget, DescriptorPool};
use crate::lan::ConnectionCommand;
use crate::mailbox::LoopMessage;

/// Enough that a reset which can overtake an answer does so.
const TRIES: usize = 200;
/// The bytes that clients send after their requests without waiting: half of the bytes that are
/// discarded.
const EARLY_BYTES: usize = DISCARD_BYTES / 2;

/// Starts a proxy that declines every connection, and returns where it listens.
async fn declining(protocol: ProxyProtocol, failure: ConnectFailure) -> SocketAddr {
    let (mailbox, mut messages) = LoopMailbox::new();
    let descriptors = DescriptorPool::new(DescriptorBudget {
        pool: 64,
        flows: 16,
        disk_files: 4,
        handshakes: 4,
        probes: 4,
    });
    let connections = ConnectionNumbers::new(Handle::current(), descriptors);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(listen(listener, protocol, places(), connections, mailbox));
    tokio::spawn(async move {
        while let Some(message) = messages.recv().await {
            if let LoopMessage::Asked { commands, .. } = message {
                commands.send(ConnectionCommand::Decline(failure)).unwrap();
            }
        }
    });
    address
}

/// Sends a request and more behind it, and returns the answer. A reset is an error, also behind the answer.
async fn ask_early(proxy: SocketAddr, request: &[u8]) -> io::Result<Vec<u8>> {
    let mut client = TcpStream::connect(proxy).await?;
    client.write_all(request).await?;
    client.write_all(&[b'x'; EARLY_BYTES]).await?;
    let mut answer = Vec::new();
    client.read_to_end(&mut answer).await?;
    // It has heard the end; it is not told only now that its bytes went nowhere.
    client.write_all(b"late").await?;
    client.shutdown().await?;
    match client.take_error()? {
        Some(error) => Err(error),
        None => Ok(answer),
    }
}

#[tokio::test]
async fn declined_early_sender_gets_its_answer() {
    let failure = ConnectFailure::Refused;
    let http = declining(ProxyProtocol::HttpConnect, failure).await;
    let socks = declining(ProxyProtocol::Socks5, failure).await;
    let greeting: &[u8] = &[5, 1, 0];
    let request: &[u8] = &[5, 1, 0, 1, 192, 0, 2, 1, 0, 80];
    let by_socks = [greeting, request].concat();
    let socks_answer = [
        &socks5::CHOSE_NO_AUTHENTICATION[..],
        &socks5::failure(failure),
    ]
    .concat();
    for number in 0..TRIES {
        let answer = ask_early(http, b"CONNECT 192.0.2.1:80 HTTP/1.1\r\n\r\n").await;
        let answer = answer.unwrap_or_else(|error| panic!("HTTP, {number}: {error}"));
        assert_eq!(answer, http_connect::failure(failure));
        let answer = ask_early(socks, &by_socks).await;
        let answer = answer.unwrap_or_else(|error| panic!("SOCKS5, {number}: {error}"));
        assert_eq!(answer, socks_answer);
    }
}

#[tokio::test]
async fn invalid_early_sender_gets_its_answer() {
    let proxy = declining(ProxyProtocol::HttpConnect, ConnectFailure::Other).await;
    for number in 0..TRIES {
        let answer = ask_early(proxy, b"POST / HTTP/1.1\r\n\r\n").await;
        let answer = answer.unwrap_or_else(|error| panic!("{number}: {error}"));
        assert_eq!(answer, ConnectStatus::MethodNotAllowed.answer());
    }
}

#[tokio::test(start_paused = true)]
async fn endless_sender_is_cut_off() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut client = TcpStream::connect(listener.local_addr().unwrap())
        .await
        .unwrap();
    let (mut stream, _) = listener.accept().await.unwrap();
    // A silent one costs a second, and one that floods the bytes.
    let begun = tokio::time::Instant::now();
    end_with(&mut stream, b"no").await;
    assert_eq!(begun.elapsed().as_secs(), DISCARD_FOR.as_secs());
    let flood = vec![b'x'; 4 * DISCARD_BYTES];
    let (_, ()) = tokio::join!(client.write_all(&flood), async {
        end_with(&mut stream, b"").await;
        drop(stream);
    });
    assert!(client.write_all(&flood).await.is_err());
}
