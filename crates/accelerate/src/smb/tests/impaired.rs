//! Tactics that work ahead of the client while the path is cut, a node dies or the server resets: listings of the next
//! directories (docs/decisions/0090), missing names (0088) and opens after a change of a name (0092). The engines' path
//! repairs losses, so that the halves see a lossy path as one that stops for a while.

use std::time::Duration;

use super::super::testing::messages::{self, Smb2CreateParameters, Smb2Message};
use super::super::testing::server::{FULL, NO_SUCH_FILE};
use super::super::testing::world::{FAR, NEAR, Smb2World};
use super::super::wire::FileId;
use super::super::wire::create::CreateResponse;
use super::super::wire::header::{flag, status};
use super::world_with;

/// Twigs of the tree, and the pauses of the path: shorter and longer than answers stay usable.
const TWIGS: usize = 8;
const PAUSES: [u64; 4] = [15, 150, 900, 3_000];

fn tree_world() -> Smb2World {
    let mut world = world_with(1_000);
    world.server.credits_max = 512;
    world.server.directories.insert("tree".to_owned());
    for index in 0..TWIGS {
        let twig = format!("tree\\twig-{index}");
        world
            .server
            .files
            .insert(format!("{twig}\\leaf"), Vec::new());
        world.server.directories.insert(twig);
    }
    world
}

/// Opens a directory and asks for its first names in one compound, and does not wait.
fn send_listing(world: &mut Smb2World, path: &str) -> Vec<u64> {
    let create = Smb2CreateParameters {
        access: 0x81,
        disposition: 1,
        options: 0,
        ..Smb2CreateParameters::open(path)
    };
    let mut list = messages::list(FileId::RELATED, 0, 65_536);
    list.body[2] = FULL;
    world.send_chain(0, &[create.request(), list.with_flags(flag::RELATED)])
}

/// Waits for a listing, and closes the directory. Returns the status of the open.
fn finish_listing(world: &mut Smb2World, ids: &[u64]) -> u32 {
    let opened = world.wait(0, ids[0]);
    world.wait(0, ids[1]);
    if opened.header.status == status::SUCCESS {
        let file = CreateResponse::parse(&opened.body).unwrap().file;
        world.ask(0, &messages::close(file));
    }
    opened.header.status
}

/// Cuts the path for so long.
fn pause_path(world: &mut Smb2World, pause: u64) {
    world.is_cut = true;
    world.run_for(Duration::from_millis(pause));
    world.is_cut = false;
}

#[test]
fn paused_path_shows_no_old_directory() {
    for pause in PAUSES {
        let mut world = tree_world();
        let other = world.beside();
        let root = send_listing(&mut world, "tree");
        finish_listing(&mut world, &root);
        for index in 0..3 {
            let ids = send_listing(&mut world, &format!("tree\\twig-{index}"));
            assert_eq!(finish_listing(&mut world, &ids), status::SUCCESS);
        }
        // Others change the next one while its listing is under way, and the client goes on.
        world.run_for(Duration::from_millis(10));
        world.is_cut = true;
        let made = world.create(other, &Smb2CreateParameters::open("tree\\twig-3\\new"));
        world.ask(other, &messages::close(made));
        world.run_for(Duration::from_millis(pause));
        world.is_cut = false;
        world.run_for(Duration::from_millis(100));
        let ids = send_listing(&mut world, "tree\\twig-3");
        let opened = world.wait(0, ids[0]);
        let names = world.wait(0, ids[1]).body;
        let new: Vec<u8> = "new".encode_utf16().flat_map(u16::to_le_bytes).collect();
        let is_there = names.windows(new.len()).any(|window| window == new);
        assert!(is_there, "after {pause} ms");
        let file = CreateResponse::parse(&opened.body).unwrap().file;
        world.ask(0, &messages::close(file));
        world.run_for(Duration::from_secs(3));
        assert_eq!(world.server.open_count(), 0, "after {pause} ms");
        assert!(world.let_go.is_none());
    }
}

/// Opens a file and looks behind it, as Windows does. Returns the status of the second CREATE.
fn open_and_look(world: &mut Smb2World, name: &str, pause: u64) -> u32 {
    let opening = Smb2CreateParameters {
        access: 0x12_0089,
        disposition: 1,
        options: 0x60,
        ..Smb2CreateParameters::leased(name, name.as_bytes()[0])
    };
    let file = world.create(0, &opening);
    pause_path(world, pause);
    let path = format!("{name}:s");
    let look = Smb2CreateParameters {
        name: &path,
        lease: None,
        oplock: 0,
        ..opening
    };
    let answer = world.ask(0, &look.request());
    if answer.header.status == status::SUCCESS {
        let other = CreateResponse::parse(&answer.body).unwrap().file;
        world.ask(0, &messages::close(other));
    }
    world.ask(0, &messages::close(file));
    answer.header.status
}

#[test]
fn paused_path_shows_no_missing_name_that_is_there() {
    for pause in PAUSES {
        let mut world = world_with(1_000);
        let other = world.beside();
        assert_eq!(open_and_look(&mut world, "a", 0), NO_SUCH_FILE);
        assert_eq!(open_and_look(&mut world, "a", pause), NO_SUCH_FILE);
        let making = Smb2CreateParameters {
            disposition: 2,
            ..Smb2CreateParameters::open("a:s")
        };
        let made = world.create(other, &making);
        world.ask(other, &messages::close(made));
        assert_eq!(open_and_look(&mut world, "a", pause), status::SUCCESS);
        world.run_for(Duration::from_secs(2));
        assert_eq!(world.server.open_count(), 0);
        assert!(world.let_go.is_none());
    }
}

/// A node dies at every moment of a walk or of looks behind files: the client's next connection finds what the server
/// has, and nothing stays open.
#[test]
fn death_of_a_node_leaves_nothing_open() {
    for node in [NEAR, FAR] {
        for after in [0, 20, 60, 110] {
            for walks in [true, false] {
                let mut world = tree_world();
                let other = world.beside();
                if walks {
                    let root = send_listing(&mut world, "tree");
                    finish_listing(&mut world, &root);
                    let ids = send_listing(&mut world, "tree\\twig-0");
                    finish_listing(&mut world, &ids);
                    send_listing(&mut world, "tree\\twig-1");
                } else {
                    open_and_look(&mut world, "a", 0);
                    let opening = Smb2CreateParameters {
                        access: 0x12_0089,
                        disposition: 1,
                        options: 0x60,
                        ..Smb2CreateParameters::leased("a", b'a')
                    };
                    world.send(0, &opening.request());
                }
                world.run_for(Duration::from_millis(after));
                world.kill(node);
                world.run_for(Duration::from_millis(500));
                world.reset();
                world.run_for(Duration::from_secs(40));
                assert_eq!(world.server.open_count(), 0, "{node} after {after} ms");
                let alone: Smb2Message = Smb2CreateParameters {
                    share: 0,
                    ..Smb2CreateParameters::open("a")
                }
                .request();
                let answer = world.ask(other, &alone);
                assert_eq!(answer.header.status, status::SUCCESS);
            }
        }
    }
}
