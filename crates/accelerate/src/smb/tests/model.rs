//! Random steps of two clients, one behind the halves and one beside the server, against the
//! server's own files: no read may return what a client beside the server would not have got.

use std::time::Duration;

use vocab::Random;

use super::super::testing::messages::{self, Create};
use super::super::testing::world::World;
use super::super::wire::FileId;
use super::super::wire::header::status;
use super::{DELAY, contents};

const NAMES: [&str; 3] = ["a", "b", "c"];

/// One client's opens.
type Opens = Vec<(FileId, &'static str)>;

/// What a reader at this moment must get: the contents as every answered WRITE left them.
struct Model {
    files: std::collections::BTreeMap<&'static str, Vec<u8>>,
}

impl Model {
    fn read(&self, name: &str, offset: usize, length: usize) -> Vec<u8> {
        let file = &self.files[name];
        let start = offset.min(file.len());
        file[start..(start + length).min(file.len())].to_vec()
    }

    fn write(&mut self, name: &str, offset: usize, data: &[u8]) {
        let file = self.files.get_mut(name).unwrap();
        if file.len() < offset + data.len() {
            file.resize(offset + data.len(), 0);
        }
        file[offset..offset + data.len()].copy_from_slice(data);
    }
}

fn step(world: &mut World, model: &mut Model, random: &mut Random, opens: &mut [Opens; 2]) {
    let who = random.below(2) as usize;
    match random.below(12) {
        0 | 1 if opens[who].len() < 3 => {
            let name = NAMES[random.below(3) as usize];
            let file = world.create(who, &Create::open(name));
            opens[who].push((file, name));
        }
        2 if !opens[who].is_empty() => {
            let index = random.below(opens[who].len() as u64) as usize;
            let (file, _) = opens[who].swap_remove(index);
            let answer = world.ask(who, &messages::close(file));
            assert_eq!(answer.header.status, status::SUCCESS);
        }
        3 => world.run_for(Duration::from_millis(random.below(300))),
        action if !opens[who].is_empty() => {
            let index = random.below(opens[who].len() as u64) as usize;
            let (file, name) = opens[who][index];
            let offset = random.below(12) * 5_000;
            match action {
                4..=6 => {
                    let length = 1 + random.below(9_000) as usize;
                    let data = vec![random.below(256) as u8; length];
                    let answer = world.ask(who, &messages::write(file, offset, &data));
                    assert_eq!(answer.header.status, status::SUCCESS);
                    model.write(name, offset as usize, &data);
                }
                7 => {
                    let end = random.below(60_000);
                    world.ask(who, &messages::set_end(file, end));
                    model.files.get_mut(name).unwrap().resize(end as usize, 0);
                }
                _ => {
                    for block in 0..=random.below(4) {
                        let at = offset + block * 5_000;
                        let data = super::read(world, who, file, at, 5_000);
                        let wanted = model.read(name, at as usize, 5_000);
                        assert!(data == wanted, "client {who}, {name} at {at}");
                    }
                }
            }
        }
        _ => {}
    }
}

#[test]
fn two_clients_at_random_never_see_what_a_direct_client_would_not() {
    for seed in 0..40 {
        let mut random = Random::from_seed(seed);
        let mut world = World::new(DELAY);
        world.server.credits_max = 1 + random.below(64) as u16;
        world.piece = [usize::MAX, 1_000, 77][random.below(3) as usize];
        let mut model = Model {
            files: Default::default(),
        };
        for name in NAMES {
            let length = random.below(60_000) as usize;
            world.server.files.insert(name.to_owned(), contents(length));
            model.files.insert(name, contents(length));
        }
        world.set_up(0);
        world.beside();
        let mut opens = [Vec::new(), Vec::new()];
        for _ in 0..150 {
            step(&mut world, &mut model, &mut random, &mut opens);
        }
        world.run_for(Duration::from_secs(5));
        for (who, opens) in opens.into_iter().enumerate() {
            for (file, _) in opens {
                world.ask(who, &messages::close(file));
            }
        }
        for name in NAMES {
            assert!(world.server.files[name] == model.files[name], "seed {seed}");
        }
        assert!(world.let_go.is_none(), "seed {seed}");
        assert!(world.clients[0].unasked.is_empty());
    }
}
