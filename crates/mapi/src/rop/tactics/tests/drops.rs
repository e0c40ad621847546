//! Messages that are sent through connections that break: an acknowledged save is kept.

use std::time::Duration;

use vocab::{SeededRandom, Time};

use super::super::super::buffer::{NO_HANDLE, RopBuffer};
use super::super::super::id;
use super::server::MailServer;
use super::{
    ClientGeneration, TacticsWorld, create_message, logon, noise, open_stream, plain, save,
    write_stream,
};

/// A node that ends in the middle of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EndedNode {
    /// The far machine gets what has left the near one, and then the end.
    Near,
    Far,
}

/// A client that makes calls until a time.
struct SendingClient<'a> {
    world: &'a mut TacticsWorld,
    generation: ClientGeneration,
    until: Time,
}

impl SendingClient<'_> {
    fn call(&mut self, rops: &[Vec<u8>], handles: &[u32]) -> Option<RopBuffer> {
        let request = self.generation.request(rops, handles);
        let call = self.world.begin_on(self.world.current_pair, &request);
        let answer = self.world.answer_until(call, &request, Some(self.until))?;
        Some(RopBuffer::read(&answer.buffers[0].bytes).unwrap())
    }

    /// Sends a message; returns its content if the server acknowledged it.
    fn send(&mut self, store: u32, random: &mut SeededRandom) -> Option<Option<Vec<u8>>> {
        let rops = [
            create_message(0, 1),
            vec![id::CREATE_ATTACHMENT, 0, 1, 2],
            open_stream(2, 3, 2),
        ];
        let handles = [store, NO_HANDLE, NO_HANDLE, NO_HANDLE];
        let opened = self.call(&rops, &handles)?;
        let [_, message, attachment, stream] = opened.handles[..] else {
            panic!("four handles");
        };
        let mut content = Vec::new();
        for _ in 0..1 + random.next_u64() % 20 {
            let piece = noise(1 + (random.next_u64() % 30_000) as usize);
            self.call(&[write_stream(0, &piece)], &[stream])?;
            content.extend(piece);
        }
        self.call(&[plain(id::COMMIT_STREAM, 0)], &[stream])?;
        let rops = [save(id::SAVE_CHANGES_ATTACHMENT, 0)];
        self.call(&rops, &[attachment])?;
        let saved = self.call(&[save(id::SAVE_CHANGES_MESSAGE, 0)], &[message])?;
        let rops = [1, 2].map(|index| plain(id::RELEASE, index));
        let rops = [vec![plain(id::RELEASE, 0)], rops.to_vec()].concat();
        self.call(&rops, &[message, attachment, stream])?;
        Some((saved.rops[2..6] == [0; 4]).then_some(content))
    }
}

/// Sends messages until a node ends; returns the count of acknowledged ones.
fn run(seed: u64, node: EndedNode) -> usize {
    let mut random = SeededRandom::from_seed(seed);
    let generation = match random.next_u64().is_multiple_of(2) {
        true => ClientGeneration::Xp,
        false => ClientGeneration::Single,
    };
    let mut server = MailServer::new();
    if random.next_u64().is_multiple_of(2) {
        server.stream_max = 200_000;
    }
    let rate = random.next_u64().is_multiple_of(2).then_some(500_000.0);
    let mut world = TacticsWorld::new(server, Duration::from_millis(50), rate);
    let store = world.rops(generation, &[logon()], &[NO_HANDLE]).handles[0];
    let lasts = Duration::from_millis(random.next_u64() % 10_000);
    let until = world.now + lasts;
    let mut acknowledged = Vec::new();
    let mut client = SendingClient {
        world: &mut world,
        generation,
        until,
    };
    while let Some(sent) = client.send(store, &mut random) {
        acknowledged.extend(sent);
    }
    match node {
        EndedNode::Near => world.end(0),
        EndedNode::Far => world.break_off(0),
    }
    // Each message that was acknowledged is there, whole.
    let mut kept: Vec<&Vec<u8>> = world.server.kept.values().collect();
    for content in &acknowledged {
        let place = kept.iter().position(|one| *one == content);
        kept.remove(place.unwrap_or_else(|| panic!("seed {seed} {node:?}: a message is lost")));
    }
    // One more may be there, whose acknowledgement was on its way.
    assert!(kept.len() <= 1, "seed {seed} {node:?}");
    acknowledged.len()
}

#[test]
fn acknowledged_messages_outlive_the_end_of_a_node() {
    for node in [EndedNode::Near, EndedNode::Far] {
        let acknowledged: usize = (0..200).map(|seed| run(seed, node)).sum();
        assert!(acknowledged > 200, "{acknowledged}");
    }
}
