//! Two random clients, one behind the halves and one beside the server, over a path that is cut and
//! nodes that fail, at a server that refuses requests. The answers to both must be consistent with
//! the events at the server (`trace` defines the check).
//!
//! A failure prints its seed; `run(seed)` repeats the run.

mod trace;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use vocab::{SeededRandom, Time};

use super::super::testing::messages::{self, Smb2CreateParameters, Smb2Message};
use super::super::testing::server::{DISK_FULL, FULL, HistoryEvent};
use super::super::testing::world::{FAR, NEAR, Smb2World};
use super::super::wire::FileId;
use super::super::wire::create::CreateResponse;
use super::super::wire::header::{flag, status};
use super::super::wire::lease::{LeaseBreak, LeaseKey};
use super::super::wire::oplock::OplockBreak;
use super::super::wire::query_info::InformationQuestion;
use super::super::{ConsistencyMode, SmbSettings};
use super::{DELAY, contents};
use crate::AcceleratorInput;
use trace::{
    ListingStart, ModelTrace, StatQuestion, TraceCounts, TraceFaults, TraceMoment, TraceOperation,
    TraceRequest,
};

const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];
/// Names that are looked for behind them, and seldom there.
const STREAMS: [&str; 5] = ["a:s", "b:s", "c:s", "d:s", "e:s"];
/// The wait of the servers that were measured (docs/decisions/0029).
const SERVER_WAITS: Duration = Duration::from_secs(35);
/// The time that a server takes for WRITEs when it works on several at a time.
const SERVER_HOLDS: Duration = Duration::from_millis(100);
/// The longest time in which a slow client gives an oplock or a lease back, in seconds: for a longer time than
/// the server waits for it.
const SLOW_HOLDER_TAKES: u64 = 45;
/// The silence after which a node counts its peer as gone.
const SILENT_AFTER: Duration = Duration::from_secs(5);
const RELAXED: ConsistencyMode = ConsistencyMode::Relaxed {
    staleness: ConsistencyMode::STALENESS,
};
const DEVICE_ERROR: u32 = 0xc000_0185;

/// The use of a handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HandleUse {
    Data {
        may_write: bool,
    },
    Attributes,
    /// To rename or delete.
    Names,
    Listing(ModelListing),
}

/// The position of a client in a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ModelListing {
    Fresh,
    /// It waits for an answer.
    Asked,
    /// There are more names.
    Amid,
    /// There are none, or the query was refused: it may restart.
    Over,
}

#[derive(Clone, Debug)]
struct ModelHandle {
    file: FileId,
    is_for: HandleUse,
    /// The end of the last READ.
    at: u64,
}

/// The oplock or lease that a client must give back.
#[derive(Clone, Copy, Debug)]
enum BreakTarget {
    Oplock(FileId),
    Lease(LeaseKey),
}

/// The event that a client waits for.
#[derive(Debug)]
struct ClientWait {
    id: u64,
    place: usize,
    opens: Option<(HandleUse, bool)>,
}

/// One run.
struct ModelRun {
    random: SeededRandom,
    world: Smb2World,
    ops: Vec<TraceOperation>,
    trouble: TraceFaults,
    handles: [Vec<ModelHandle>; 2],
    waits: [Vec<ClientWait>; 2],
    /// The opens for which a client requested an oplock.
    own_oplocks: BTreeSet<FileId>,
    /// The number of handled notices, and outstanding acknowledgements.
    heard: [usize; 2],
    acknowledges: Vec<(Time, usize, BreakTarget, u8)>,
    /// Oplocks that the server wants back, and since when.
    breaks: Vec<(Time, FileId)>,
    seen: usize,
    ends_at: Option<Time>,
    /// The time at which the nodes notice the silence.
    falls_silent: Option<Time>,
    tag: u32,
    scale: u64,
    /// The length of clients' requests for names, in bytes.
    lists: u32,
    /// The file that both clients mostly use, if there is one.
    favourite: Option<usize>,
    /// The client behind the halves often opens files one after the other to read them; the next.
    goes_through: Option<usize>,
    /// The client behind the halves saves documents, and the places of the names that it uses: a document, a new
    /// file, and the old one.
    saves: bool,
    saved: [usize; 3],
    /// The last answer to a request that is not checked.
    unchecked: Option<u64>,
    /// Clients give oplocks and leases back late, at times after the server has taken them.
    has_slow_holders: bool,
    /// The requests for names in compounds of the client behind the halves, by the id of the CREATE: their opens
    /// are not known yet.
    compounds: BTreeMap<u64, usize>,
}

impl ModelRun {
    fn new(seed: u64, consistency: ConsistencyMode) -> Self {
        let mut random = SeededRandom::from_seed(seed);
        let settings = SmbSettings {
            consistency,
            ..SmbSettings::STRICT
        };
        let mut world = Smb2World::with_settings(DELAY, settings);
        world.server.credits_max = [1, 8, 64, 512][random.below(4) as usize];
        world.piece = [usize::MAX, usize::MAX, 1_000, 77][random.below(4) as usize];
        let scale = [200, 2_000, 20_000][random.below(3) as usize];
        let lists = [16_384, 65_536][random.below(2) as usize];
        let favourite = (random.below(2) == 0).then(|| random.below(3) as usize);
        let is_relaxed = consistency != ConsistencyMode::Strict;
        if random.below(4) == 0 {
            // More names than one answer holds.
            let others = (0..200).map(|index| (format!("other-{index:03}"), Vec::new()));
            world.server.files.extend(others);
        }
        for name in &NAMES[..if is_relaxed { 5 } else { 3 }] {
            let length = random.below(6 * scale) as usize;
            world
                .server
                .files
                .insert((*name).to_owned(), contents(length));
        }
        world.server.directories.insert("tree".to_owned());
        let twigs = (0..4).map(|index| format!("tree\\twig-{index}"));
        world.server.directories.extend(twigs);
        world.set_up(0);
        if is_relaxed {
            let file = world.create(0, &Smb2CreateParameters::directory(""));
            let mut list = messages::list(file, 0, 65_536);
            list.body[2] = FULL;
            world.ask(0, &list);
            world.ask(0, &messages::close(file));
        }
        world.beside();
        world.server.keep_history();
        let mut trouble = TraceFaults::default();
        if random.below(3) == 0 {
            world.server_takes = Duration::from_millis(random.below(40));
            trouble.is_slow = true;
        }
        trouble.is_silence_told = random.below(2) == 0;
        trouble.is_relaxed = is_relaxed;
        let has_slow_holders = random.below(4) == 0;
        let saves = random.below(3) == 0;
        let document = favourite.unwrap_or_default();
        let saved = [document, (document + 1) % 5, (document + 3) % 5];
        Self {
            random,
            world,
            ops: Vec::new(),
            trouble,
            handles: [Vec::new(), Vec::new()],
            waits: [Vec::new(), Vec::new()],
            own_oplocks: BTreeSet::new(),
            heard: [0, 0],
            acknowledges: Vec::new(),
            breaks: Vec::new(),
            seen: 0,
            ends_at: None,
            falls_silent: None,
            tag: 0,
            scale,
            lists,
            favourite,
            goes_through: is_relaxed.then_some(0),
            saves,
            saved,
            unchecked: None,
            has_slow_holders,
            compounds: BTreeMap::new(),
        }
    }

    fn moment(&self) -> TraceMoment {
        TraceMoment {
            happened: self.world.server.happened(),
            at: self.world.now,
        }
    }

    fn may_ask(&self, who: usize) -> bool {
        let is_there = who > 0 || !self.world.is_client_gone;
        // Of what it asks while the path is cut, some is answered none the less.
        let most = if self.world.is_cut && who == 0 { 16 } else { 3 };
        is_there && self.waits[who].len() < most && self.world.clients[who].credits() > 1
    }

    fn ask(
        &mut self,
        who: usize,
        request: &Smb2Message,
        asked: TraceRequest,
        opens: Option<(HandleUse, bool)>,
    ) {
        let sent = self.moment();
        let id = self.world.send(who, request);
        let place = self.ops.len();
        self.ops.push(TraceOperation {
            who,
            id,
            asked,
            sent,
            answered: None,
        });
        self.waits[who].push(ClientWait { id, place, opens });
    }

    /// Opens the next file, to read it.
    fn open_next(&mut self, index: usize) {
        self.goes_through = Some((index + 1) % NAMES.len());
        let create = Smb2CreateParameters {
            access: 0x1,
            disposition: 1,
            ..Smb2CreateParameters::open(NAMES[index])
        };
        let is_for = HandleUse::Data { may_write: false };
        let asked = opening(&create);
        self.ask(0, &create.request(), asked, Some((is_for, false)));
    }

    /// Asks for the attributes of a file, and then opens it, as the Linux kernel's client does.
    fn open_after_stat(&mut self) {
        self.trouble.has_leased_offers = true;
        if !self.may_ask(0) || self.world.clients[0].credits() <= 6 {
            return;
        }
        let name = match self.favourite {
            Some(index) if self.random.below(2) == 0 => NAMES[index],
            _ => NAMES[self.random.below(5) as usize],
        };
        let ids = self.stat(0, name);
        let step = Duration::from_millis(1 + self.random.below(10));
        for _ in 0..40 {
            if self.unchecked == Some(ids[2]) {
                break;
            }
            self.go_on(step);
        }
        if self.random.below(4) == 0 {
            let pause = Duration::from_millis(self.random.below(60));
            self.go_on(pause);
        }
        // Some look, and do not open.
        if !self.may_ask(0) || self.random.below(6) == 0 {
            return;
        }
        self.tag += 1;
        let mut key = [0xee; 16];
        key[..4].copy_from_slice(&self.tag.to_le_bytes());
        let create = Smb2CreateParameters {
            access: 0x81,
            disposition: 1,
            context: (self.random.below(2) == 0).then_some(b"DHnQ"),
            oplock: 0xff,
            lease: Some((LeaseKey(key), 7)),
            ..Smb2CreateParameters::open(name)
        };
        let is_for = HandleUse::Data { may_write: false };
        let asked = opening(&create);
        self.ask(0, &create.request(), asked, Some((is_for, true)));
    }

    /// Opens a file, and looks for its stream, as Windows does.
    fn look_behind(&mut self) {
        let index = self.random.below(5) as usize;
        let create = Smb2CreateParameters {
            access: 0x81,
            disposition: 1,
            options: 0x60,
            ..Smb2CreateParameters::open(NAMES[index])
        };
        let is_for = HandleUse::Data { may_write: false };
        let asked = opening(&create);
        self.ask(0, &create.request(), asked, Some((is_for, false)));
        let place = self.ops.len() - 1;
        self.go_on_until_answered(place);
        if self.may_ask(0) {
            let create = Smb2CreateParameters {
                name: STREAMS[index],
                ..create
            };
            let asked = opening(&create);
            self.ask(0, &create.request(), asked, Some((is_for, false)));
        }
    }

    /// Renames and deletes files and opens another one, in the order of a program that saves a document. In between
    /// something else may happen.
    fn save(&mut self) {
        self.trouble.has_leased_offers = true;
        let [document, temporary, backup] = self.saved;
        if self.open_to_save(temporary, 0x83, 7).is_none() {
            return;
        }
        if !self.change_name(document, |file| messages::rename(file, NAMES[backup]))
            || !self.change_name(temporary, |file| messages::rename(file, NAMES[document]))
            || !self.change_name(backup, messages::delete)
        {
            return;
        }
        self.open_to_save(document, 0x83, 7);
    }

    /// Opens a file as Windows does, to rename or delete it, sends the change, and closes it. Returns false if the
    /// client does not go on.
    fn change_name(&mut self, index: usize, change: impl Fn(FileId) -> Smb2Message) -> bool {
        let Some(file) = self.open_to_save(index, 0x1_0080, 0) else {
            return false;
        };
        if !self.may_ask(0) {
            return false;
        }
        self.ask(0, &change(file), TraceRequest::Names, None);
        self.wait_for_last();
        self.meddle();
        // In between the client may have closed it.
        let is_open = self.handles[0].iter().any(|handle| handle.file == file);
        if !is_open || !self.may_ask(0) || self.random.below(12) == 0 {
            return false;
        }
        self.handles[0].retain(|handle| handle.file != file);
        let request = messages::close(file);
        self.ask(0, &request, TraceRequest::Close { file }, None);
        self.wait_for_last();
        self.meddle();
        true
    }

    /// Opens a file under a lease of this state. Returns the open, if it was made.
    fn open_to_save(&mut self, index: usize, access: u32, state: u8) -> Option<FileId> {
        if !self.may_ask(0) || self.world.clients[0].credits() <= 6 {
            return None;
        }
        let is_new = index == self.saved[1] && access == 0x83;
        let key = NAMES[index].as_bytes()[0];
        let create = Smb2CreateParameters {
            access,
            disposition: if is_new { 3 } else { 1 },
            context: Some(b"DHnQ"),
            lease: Some((LeaseKey([key; 16]), state)),
            ..Smb2CreateParameters::leased(NAMES[index], key)
        };
        let is_for = match state {
            0 => HandleUse::Names,
            _ => HandleUse::Data { may_write: true },
        };
        self.ask(0, &create.request(), opening(&create), Some((is_for, true)));
        let place = self.ops.len() - 1;
        self.wait_for_last();
        let (_, answer) = self.ops[place].answered.as_ref()?;
        let is_open = answer.header.status == status::SUCCESS;
        let file = is_open.then(|| CreateResponse::parse(&answer.body).unwrap().file)?;
        if is_new && self.may_ask(0) && self.random.below(4) > 0 {
            self.handles[0].retain(|handle| handle.file != file);
            let request = messages::close(file);
            self.ask(0, &request, TraceRequest::Close { file }, None);
        }
        Some(file)
    }

    /// Waits for the answer to the last request, for a while.
    fn wait_for_last(&mut self) {
        let place = self.ops.len() - 1;
        let step = Duration::from_millis(1 + self.random.below(10));
        for _ in 0..40 {
            if self.ops[place].answered.is_some() {
                break;
            }
            self.go_on(step);
        }
    }

    /// Lets something happen, or time pass, at times.
    fn meddle(&mut self) {
        match self.random.below(16) {
            0 => self.clients_act(),
            1 | 2 if self.may_ask(1) => self.act(1),
            3 => {
                let pause = Duration::from_millis(self.random.below(60));
                self.go_on(pause);
            }
            4 => self.trouble(),
            _ => {}
        }
    }

    /// Asks for the attributes of a name, in one compound. Returns the ids of its requests.
    fn stat(&mut self, who: usize, name: &str) -> Vec<u64> {
        let create = Smb2CreateParameters {
            access: 0x80,
            disposition: 1,
            options: 0,
            context: Some(b"QFid"),
            ..Smb2CreateParameters::open(name)
        };
        let mut question = messages::query_position(FileId::RELATED);
        let asks = [
            StatQuestion::Length,
            StatQuestion::Version,
            StatQuestion::Position,
        ][self.random.below(3) as usize];
        question.body[3] = asks as u8;
        let related = |request: Smb2Message| request.with_flags(flag::RELATED);
        let requests = [
            create.request(),
            related(question),
            related(messages::close(FileId::RELATED)),
        ];
        let sent = self.moment();
        let ids = self.world.send_chain(who, &requests);
        let asked = [
            TraceRequest::Stat {
                name: name.to_owned(),
            },
            TraceRequest::StatDetail { asks },
        ];
        for (id, asked) in ids.iter().zip(asked) {
            let place = self.ops.len();
            self.ops.push(TraceOperation {
                who,
                id: *id,
                asked,
                sent,
                answered: None,
            });
            let id = *id;
            let opens = None;
            self.waits[who].push(ClientWait { id, place, opens });
        }
        ids
    }

    /// Lists a directory and some of those in it, as the Linux kernel's client goes through a tree. In between
    /// something else may happen.
    fn walk(&mut self) {
        let mut path = "tree".to_owned();
        let mut next = self.random.below(2);
        for _ in 0..4 {
            if !self.may_ask(0) || self.world.clients[0].credits() < 6 {
                return;
            }
            let Some(file) = self.list_in_compound(&path) else {
                return;
            };
            for _ in 0..20 {
                let handles = self.handles[0].iter();
                let mut handles = handles.filter(|handle| handle.file == file);
                let is_amid = handles
                    .next()
                    .is_some_and(|handle| handle.is_for == HandleUse::Listing(ModelListing::Amid));
                if !is_amid || !self.may_ask(0) {
                    break;
                }
                self.list_more(file);
                let pause = Duration::from_millis(self.random.below(3));
                self.go_on(pause);
            }
            if self.may_ask(0) && self.random.below(4) > 0 {
                self.handles[0].retain(|handle| handle.file != file);
                let request = messages::close(file);
                self.ask(0, &request, TraceRequest::Close { file }, None);
            }
            match self.random.below(8) {
                0 => self.clients_act(),
                3 => self.move_tree(),
                4 => self.make_twig_anew(next),
                1 if self.may_ask(1) => self.act(1),
                2 => {
                    let pause = Duration::from_millis(self.random.below(60));
                    self.go_on(pause);
                }
                _ => {}
            }
            path = format!("tree\\twig-{next}");
            next = (next + 1) % 4;
        }
    }

    /// Gives the directory of the twigs another name, and then its own.
    fn move_tree(&mut self) {
        let create = Smb2CreateParameters {
            access: 0x1_0080,
            ..Smb2CreateParameters::directory("tree")
        };
        let Some(file) = self.open_directory(&create) else {
            return;
        };
        for to in ["tree-moved", "tree"] {
            if self.may_ask(0) {
                self.ask(0, &messages::rename(file, to), TraceRequest::Moves, None);
                self.go_on_until_answered(self.ops.len() - 1);
            }
        }
        self.close_directory(file);
    }

    /// Deletes a directory, and makes it anew.
    fn make_twig_anew(&mut self, index: u64) {
        let name = format!("tree\\twig-{index}");
        for (access, disposition, options) in [(0x1_0080, 1, 0x1001), (0x81, 2, 0x1)] {
            let create = Smb2CreateParameters {
                access,
                disposition,
                options,
                ..Smb2CreateParameters::directory(&name)
            };
            if let Some(file) = self.open_directory(&create) {
                self.close_directory(file);
            }
        }
    }

    /// Opens a directory to change it; the open, once it is answered.
    fn open_directory(&mut self, create: &Smb2CreateParameters<'_>) -> Option<FileId> {
        if !self.may_ask(0) {
            return None;
        }
        let is_for = HandleUse::Listing(ModelListing::Asked);
        self.ask(0, &create.request(), opening(create), Some((is_for, false)));
        let place = self.ops.len() - 1;
        self.go_on_until_answered(place);
        let (_, answer) = self.ops[place].answered.as_ref()?;
        let opened = CreateResponse::parse(&answer.body).ok()?;
        (answer.header.status == status::SUCCESS).then_some(opened.file)
    }

    fn close_directory(&mut self, file: FileId) {
        if self.may_ask(0) {
            self.handles[0].retain(|handle| handle.file != file);
            let request = messages::close(file);
            self.ask(0, &request, TraceRequest::Close { file }, None);
            self.go_on_until_answered(self.ops.len() - 1);
        }
    }

    /// Lets time pass until a request is answered, or for as long as most of them take.
    fn go_on_until_answered(&mut self, place: usize) {
        let step = Duration::from_millis(1 + self.random.below(10));
        for _ in 0..40 {
            if self.ops[place].answered.is_some() {
                break;
            }
            self.go_on(step);
        }
    }

    /// Goes on with a listing.
    fn list_more(&mut self, file: FileId) {
        let mut request = messages::list(file, 0, self.lists);
        request.body[2] = FULL;
        for handle in &mut self.handles[0] {
            if handle.file == file {
                handle.is_for = HandleUse::Listing(ModelListing::Asked);
            }
        }
        let asked = TraceRequest::List { file, begins: None };
        self.ask(0, &request, asked, None);
    }

    /// Opens a directory and requests its first names in one compound; the open, once it is answered.
    fn list_in_compound(&mut self, path: &str) -> Option<FileId> {
        let create = Smb2CreateParameters {
            access: 0x81,
            disposition: 1,
            options: 0,
            share: 7,
            ..Smb2CreateParameters::open(path)
        };
        let mut list = messages::list(FileId::RELATED, 0, self.lists);
        list.body[2] = FULL;
        let sent = self.moment();
        let requests = [create.request(), list.with_flags(flag::RELATED)];
        let ids = self.world.send_chain(0, &requests);
        let is_for = HandleUse::Listing(ModelListing::Asked);
        let every = [
            (opening(&create), Some((is_for, false))),
            (
                TraceRequest::List {
                    file: FileId::RELATED,
                    begins: Some(ListingStart::AtFirst),
                },
                None,
            ),
        ];
        for (id, (asked, opens)) in ids.iter().zip(every) {
            let place = self.ops.len();
            if opens.is_none() {
                self.compounds.insert(ids[0], place);
            }
            self.ops.push(TraceOperation {
                who: 0,
                id: *id,
                asked,
                sent,
                answered: None,
            });
            self.waits[0].push(ClientWait {
                id: *id,
                place,
                opens,
            });
        }
        let place = self.compounds[&ids[0]];
        self.go_on_until_answered(place);
        match self.ops[place].asked {
            TraceRequest::List { file, .. } => (file != FileId::RELATED).then_some(file),
            _ => None,
        }
    }

    fn open(&mut self, who: usize) {
        let has_credits = self.world.clients[who].credits() > 6;
        if who == 0 && has_credits && self.random.below(6) == 0 {
            return self.walk();
        }
        if who == 0 && has_credits && self.saves && self.random.below(3) == 0 {
            return self.save();
        }
        if who == 0 && has_credits && self.random.below(2) == 0 {
            for _ in 0..=self.random.below(3) {
                self.open_after_stat();
            }
            return;
        }
        if let Some(index) = self.goes_through.filter(|_| who == 0)
            && self.random.below(3) > 0
        {
            return self.open_next(index);
        }
        let random = &mut self.random;
        let name = match self.favourite {
            Some(index) if random.below(3) > 0 => NAMES[index],
            _ => NAMES[random.below(5) as usize],
        };
        let name = match random.below(8) {
            0 => STREAMS[random.below(5) as usize],
            _ => name,
        };
        if has_credits && random.below(6) == 0 {
            self.stat(who, name);
            return;
        }
        if has_credits && who == 0 && random.below(6) == 0 {
            return self.look_behind();
        }
        let (is_for, access, options) = match random.below(10) {
            0 => (HandleUse::Attributes, 0x80, 0x40),
            1 | 2 => (HandleUse::Names, 0x1_0080, 0x40),
            3 => (HandleUse::Listing(ModelListing::Fresh), 0x81, 0x1),
            4 => (HandleUse::Data { may_write: false }, 0x81, 0x40),
            5 => (HandleUse::Data { may_write: true }, 0x1_0083, 0x1040),
            _ => (HandleUse::Data { may_write: true }, 0x83, 0x40),
        };
        let is_listing = matches!(is_for, HandleUse::Listing(_));
        let oplock = match random.below(6) {
            _ if is_listing => 0,
            0 | 1 if is_for == HandleUse::Names => 0xff,
            0 => [1, 8, 9][random.below(3) as usize],
            1 => 0xff,
            _ => 0,
        };
        // A key for each file, and now and then another.
        let key = name.as_bytes()[0] + 16 * who as u8 + 32 * u8::from(random.below(8) == 0);
        let state = [1, 3, 5, 7, 7, 7][random.below(6) as usize];
        let lease = (oplock == 0xff).then_some((LeaseKey([key; 16]), state));
        let create = Smb2CreateParameters {
            name: if is_listing { "" } else { name },
            oplock,
            access,
            share: match random.below(4) {
                0 => random.below(8) as u32,
                _ => 7,
            },
            disposition: match random.below(8) {
                _ if is_listing || !matches!(is_for, HandleUse::Data { .. }) => 1,
                0 => [0, 2, 4, 5][random.below(4) as usize],
                1 => 1,
                _ => 3,
            },
            options,
            context: None,
            lease,
        };
        let asked = opening(&create);
        self.ask(who, &create.request(), asked, Some((is_for, oplock > 0)));
    }

    fn act(&mut self, who: usize) {
        let count = self.handles[who].len() as u64;
        if count == 0 || count < 4 && self.random.below(7) == 0 {
            return self.open(who);
        }
        let index = self.random.below(count) as usize;
        let ModelHandle {
            file, is_for, at, ..
        } = self.handles[who][index];
        if self.random.below(9) == 0 {
            self.handles[who].swap_remove(index);
            let request = match self.random.below(4) {
                0 => messages::close_with_attributes(file),
                _ => messages::close(file),
            };
            return self.ask(who, &request, TraceRequest::Close { file }, None);
        }
        match is_for {
            HandleUse::Data { may_write } => self.use_data(who, file, at, may_write),
            HandleUse::Attributes => {
                let request = messages::query_length(file);
                self.ask(who, &request, TraceRequest::Length { file }, None);
            }
            HandleUse::Names => {
                let request = match self.random.below(2) {
                    0 => messages::delete(file),
                    _ => messages::rename(file, NAMES[self.random.below(5) as usize]),
                };
                self.ask(who, &request, TraceRequest::Names, None);
            }
            HandleUse::Listing(ModelListing::Asked) => {}
            HandleUse::Listing(at) => self.list(who, index, file, at),
        }
    }

    fn list(&mut self, who: usize, index: usize, file: FileId, at: ModelListing) {
        let begins = match at {
            ModelListing::Fresh | ModelListing::Amid => self.random.below(4) == 0,
            ModelListing::Asked | ModelListing::Over => true,
        };
        let flags = [0x01, 0x10, 0x11][self.random.below(3) as usize];
        let flags = if begins { flags } else { 0 };
        let mut request = messages::list(file, flags, self.lists);
        request.body[2] = FULL;
        let asked = TraceRequest::List {
            file,
            begins: match at {
                ModelListing::Fresh => Some(ListingStart::AtFirst),
                _ if begins => Some(ListingStart::Anew),
                _ => None,
            },
        };
        self.handles[who][index].is_for = HandleUse::Listing(ModelListing::Asked);
        self.ask(who, &request, asked, None);
    }

    /// Performs a random action of the client behind the halves while nothing crosses the path.
    fn act_alone(&mut self) {
        let is_meant = |handle: &&ModelHandle| matches!(handle.is_for, HandleUse::Data { .. });
        let meant: Vec<ModelHandle> = self.handles[0].iter().filter(is_meant).cloned().collect();
        if meant.is_empty() || self.random.below(4) == 0 {
            return self.act(0);
        }
        let ModelHandle { file, is_for, at } =
            meant[self.random.below(meant.len() as u64) as usize];
        let length = 1 + self.random.below(self.scale / 10);
        if is_for == (HandleUse::Data { may_write: true }) && self.random.below(3) == 0 {
            let offset = self.random.below(6 * self.scale);
            return self.write(0, file, offset, length);
        }
        self.read(0, file, at, length);
    }

    fn use_data(&mut self, who: usize, file: FileId, at: u64, may_write: bool) {
        let scale = self.scale;
        let length = 1 + self.random.below(scale);
        let offset = self.random.below(6 * scale);
        match self.random.below(16) {
            0..=5 if may_write => self.write(who, file, offset, length),
            6 if may_write => {
                // An allocation of nothing empties the file.
                let (request, end) = match self.random.below(3) {
                    0 => (messages::set_allocation(file, 0), 0),
                    _ => (messages::set_end(file, offset), offset),
                };
                self.set_length(who, file, request, end);
            }
            7 => self.ask(
                who,
                &messages::flush(file),
                TraceRequest::Flush { file },
                None,
            ),
            8 if self.random.below(2) == 0 => self.ask_questions(who, file),
            8 if self.random.below(2) == 0 => {
                let request = messages::query_position(file);
                self.ask(who, &request, TraceRequest::Position, None);
            }
            8 => {
                let request = messages::query_length(file);
                self.ask(who, &request, TraceRequest::Length { file }, None);
            }
            other => {
                let offset = if other < 14 { at } else { offset };
                self.read(who, file, offset, length);
            }
        }
    }

    /// Asks for extended attributes, streams and rights in one compound, as Windows' Explorer does.
    fn ask_questions(&mut self, who: usize, file: FileId) {
        if self.world.clients[who].credits() < 6 {
            return;
        }
        let questions = [(1, 7, 0), (1, 22, 0), (3, 0, 7)];
        let mut requests = Vec::new();
        for (kind, class, additional) in questions {
            let question = InformationQuestion {
                kind,
                class,
                additional,
            };
            requests.push(match requests.is_empty() {
                true => messages::query_information(file, question),
                false => {
                    messages::query_information(FileId::RELATED, question).with_flags(flag::RELATED)
                }
            });
        }
        self.world.send_chain(who, &requests);
    }

    fn read(&mut self, who: usize, file: FileId, offset: u64, length: u64) {
        let offset = if offset > 6 * self.scale { 0 } else { offset };
        for handle in &mut self.handles[who] {
            if handle.file == file {
                handle.at = offset + length;
            }
        }
        let length = length as u32;
        let request = messages::read(file, offset, length);
        let asked = TraceRequest::Read {
            file,
            offset,
            length,
        };
        self.ask(who, &request, asked, None);
    }

    fn set_length(&mut self, who: usize, file: FileId, mut request: Smb2Message, end: u64) {
        let mark = self.ops.len() as u16;
        messages::mark_set(&mut request, mark);
        self.ask(who, &request, TraceRequest::Cut { file, end, mark }, None);
    }

    fn write(&mut self, who: usize, file: FileId, offset: u64, length: u64) {
        self.tag += 1;
        let tag = self.tag.to_le_bytes();
        let data: Vec<u8> = tag.into_iter().cycle().take(length as usize + 3).collect();
        let request = messages::write(file, offset, &data);
        self.ask(
            who,
            &request,
            TraceRequest::Write { file, offset, data },
            None,
        );
    }

    /// Causes a random event beside the clients.
    fn trouble(&mut self) {
        let now = self.world.now;
        match self.random.below(160) {
            0..=3 if self.ends_at.is_none() => {
                let spans = [300, 3_000, 6_000, 9_500, 11_900, 13_000, 25_000, 40_000];
                let span = spans[self.random.below(8) as usize] + self.random.below(200);
                self.cut(Duration::from_millis(span));
            }
            4 | 5 => {
                let used: usize = self.world.server.files.values().map(Vec::len).sum();
                self.world.server.disk = used + self.random.below(2 * self.scale) as usize;
                self.trouble.injected.insert(DISK_FULL);
            }
            6..=9 => self.world.server.disk = usize::MAX,
            10..=12 => {
                let command = [0x05, 0x07, 0x08, 0x09, 0x0e, 0x11][self.random.below(6) as usize];
                self.world.server.refuses = Some((command, DEVICE_ERROR));
                self.trouble.injected.insert(DEVICE_ERROR);
            }
            13..=15 => self.world.server.holds_writes ^= true,
            // Once in a run, for what may be stale is reckoned from it.
            16 if !self.trouble.has_ended && self.random.below(3) == 0 => {
                let span = Duration::from_millis(self.random.below(20_000));
                match self.random.below(3) {
                    0 => {
                        self.trouble.cuts.push(now..now + span);
                        self.world.kill(NEAR);
                    }
                    1 => {
                        self.trouble.far_died = Some(now);
                        self.falls_silent = Some(now + SILENT_AFTER);
                        self.world.kill(FAR);
                    }
                    _ => {
                        self.trouble.disconnected = Some(now);
                        self.world.server_disconnects();
                    }
                }
                self.trouble.has_ended = true;
                self.ends_at = Some(now + span);
            }
            _ => {}
        }
        self.trouble.holds_writes |= self.world.server.holds_writes;
    }

    /// Cuts the path for so long, while the clients continue.
    fn cut(&mut self, span: Duration) {
        let start = self.world.now;
        self.world.is_cut = true;
        self.falls_silent = Some(start + SILENT_AFTER);
        while self.world.now < start + span {
            self.clients_act();
            let left = (start + span).since(self.world.now);
            let step = Duration::from_millis(self.random.below(1_000)).min(left);
            self.go_on(step.max(Duration::from_millis(1)));
        }
        self.falls_silent = None;
        self.trouble.cuts.push(start..self.world.now);
        self.world.is_cut = false;
    }

    fn clients_act(&mut self) {
        let who = usize::from(self.random.below(5) > 2);
        if !self.may_ask(who) {
            return;
        }
        match who == 0 && self.world.is_cut {
            true => self.act_alone(),
            false => self.act(who),
        }
    }

    /// Lets time pass, and handles its events.
    fn go_on(&mut self, span: Duration) {
        let end = self.world.now + span;
        loop {
            let due = self.next_due();
            if due >= end {
                break;
            }
            self.world.run_for(due.since(self.world.now));
            self.do_due();
        }
        self.world.run_for(end.since(self.world.now));
        self.take_answers();
        self.take_notices();
        self.do_due();
    }

    fn next_due(&self) -> Time {
        let acknowledges = self.acknowledges.iter().map(|(at, ..)| *at);
        let breaks = self.breaks.iter().map(|(at, _)| *at + SERVER_WAITS);
        let never = self.world.now + Duration::from_secs(3_600);
        // Of a server that works on several at a time.
        let writes = self.world.server.holds_writes;
        let writes = writes.then(|| self.world.now + SERVER_HOLDS);
        acknowledges
            .chain(breaks)
            .chain(self.ends_at)
            .chain(self.falls_silent)
            .chain(writes)
            .fold(never, Time::min)
    }

    /// Performs the due actions.
    fn do_due(&mut self) {
        let now = self.world.now;
        self.world.server.do_held_writes();
        if self.falls_silent.take_if(|at| *at <= now).is_some() && self.trouble.is_silence_told {
            for half in [NEAR, FAR] {
                self.world
                    .input(half, AcceleratorInput::WanSilent(SILENT_AFTER));
            }
        }
        if self.ends_at.take_if(|at| *at <= now).is_some() {
            self.falls_silent = None;
            self.world.reset();
        }
        let due = |at: Time| at <= now;
        let (acknowledges, later) = std::mem::take(&mut self.acknowledges)
            .into_iter()
            .partition(|(at, ..)| due(*at));
        self.acknowledges = later;
        for (_, who, broken, level) in acknowledges {
            let (is_open, request) = match broken {
                BreakTarget::Oplock(file) => (
                    self.handles[who].iter().any(|handle| handle.file == file),
                    messages::acknowledge(file, level),
                ),
                BreakTarget::Lease(key) => (true, messages::acknowledge_lease(key, level)),
            };
            let is_there = who > 0 || !self.world.is_client_gone;
            if is_open && is_there && self.world.clients[who].credits() > 0 {
                self.world.send(who, &request);
            } else if is_open && is_there {
                let later = now + Duration::from_millis(50);
                self.acknowledges.push((later, who, broken, level));
            }
        }
        let given_up = self.breaks.iter().filter(|(at, _)| due(*at + SERVER_WAITS));
        for (_, file) in given_up.copied().collect::<Vec<_>>() {
            self.world.server.give_up_break(file);
        }
        self.breaks.retain(|(at, _)| !due(*at + SERVER_WAITS));
        self.world.run_for(Duration::ZERO);
        let history = self.world.server.history.as_ref().unwrap();
        for (index, happened) in history.iter().enumerate().skip(self.seen) {
            if let HistoryEvent::Broke { file, .. } = happened {
                self.breaks.retain(|(_, broken)| broken != file);
                self.breaks.push((self.world.server.times[index], *file));
            }
        }
        self.seen = history.len();
    }

    fn take_answers(&mut self) {
        for arrival in std::mem::take(&mut self.world.arrivals) {
            let who = arrival.who;
            let answered = &mut self.world.clients[who].answered;
            let Some(answer) = answered.remove(&arrival.message_id) else {
                continue;
            };
            let waits = self.waits[who].iter();
            let Some(index) = waits
                .clone()
                .position(|waits| waits.id == arrival.message_id)
            else {
                self.unchecked = Some(arrival.message_id);
                continue;
            };
            let waits = self.waits[who].swap_remove(index);
            let moment = TraceMoment {
                happened: arrival.happened,
                at: arrival.at,
            };
            if let (Some((is_for, has_oplock)), status::SUCCESS) =
                (waits.opens, answer.header.status)
            {
                let file = CreateResponse::parse(&answer.body).unwrap().file;
                if has_oplock {
                    self.own_oplocks.insert(file);
                }
                if who == 0
                    && let Some(place) = self.compounds.get(&arrival.message_id)
                    && let TraceRequest::List { file: of, .. } = &mut self.ops[*place].asked
                {
                    *of = file;
                }
                self.handles[who].push(ModelHandle {
                    file,
                    is_for,
                    at: 0,
                });
            }
            if let TraceRequest::List { file, .. } = self.ops[waits.place].asked {
                let listing = match answer.header.status {
                    status::SUCCESS => ModelListing::Amid,
                    _ => ModelListing::Over,
                };
                for handle in &mut self.handles[who] {
                    if handle.file == file {
                        handle.is_for = HandleUse::Listing(listing);
                    }
                }
            }
            self.ops[waits.place].answered = Some((moment, answer));
        }
    }

    fn take_notices(&mut self) {
        for who in 0..2 {
            let unasked = &self.world.clients[who].unasked;
            for answer in &unasked[self.heard[who]..] {
                if let Ok(notice) = LeaseBreak::parse(&answer.body) {
                    if answer.body[4] == 1 {
                        let delay = holder_takes(&mut self.random, self.has_slow_holders);
                        let state = [0, 1, 3][self.random.below(3) as usize];
                        let due = self.world.now + delay;
                        let broken = BreakTarget::Lease(notice.key);
                        self.acknowledges.push((due, who, broken, state));
                    }
                    continue;
                }
                let notice = OplockBreak::parse(&answer.body).unwrap();
                let may_be_under_way = self.waits[who].iter().any(|waits| waits.opens.is_some());
                let is_known = self.own_oplocks.contains(&notice.file);
                assert!(is_known || may_be_under_way, "a break of what it has not");
                if notice.level > 0 {
                    let delay = holder_takes(&mut self.random, self.has_slow_holders);
                    let level = self.random.below(2) as u8;
                    let due = self.world.now + delay;
                    let broken = BreakTarget::Oplock(notice.file);
                    self.acknowledges.push((due, who, broken, level));
                }
            }
            self.heard[who] = unasked.len();
        }
    }

    /// Ends the run. Returns its counts, or the error.
    fn end(mut self) -> Result<TraceCounts, String> {
        self.world.server.disk = usize::MAX;
        self.world.server.refuses = None;
        self.world.server.holds_writes = false;
        for _ in 0..60 {
            self.go_on(Duration::from_secs(1));
        }
        for who in 0..2 {
            for handle in std::mem::take(&mut self.handles[who]) {
                if who == 0 && self.world.is_client_gone {
                    continue;
                }
                let file = handle.file;
                self.ask(
                    who,
                    &messages::close(file),
                    TraceRequest::Close { file },
                    None,
                );
                self.go_on(Duration::from_secs(1));
            }
        }
        // Opens that were under way all the while.
        for _ in 0..60 {
            self.go_on(Duration::from_secs(1));
        }
        let is_there = |who: usize| who > 0 || !self.world.is_client_gone;
        let held = (0..2).filter(|who| is_there(*who));
        let held: usize = held.map(|who| self.handles[who].len()).sum();
        let open = self.world.server.open_count();
        if open != held {
            return Err(format!("{open} are open, and clients know of {held}"));
        }
        if let Some(let_go) = self.world.let_go {
            return Err(format!("it has let go: {let_go:?}"));
        }
        let trace = ModelTrace {
            history: self.world.server.history.as_ref().unwrap(),
            times: &self.world.server.times,
            ops: &self.ops,
            trouble: &self.trouble,
        };
        trace.check()
    }
}

/// The time until a client gives an oplock or a lease back.
fn holder_takes(random: &mut SeededRandom, is_slow: bool) -> Duration {
    match is_slow && random.below(3) == 0 {
        true => Duration::from_secs(random.below(SLOW_HOLDER_TAKES)),
        false => Duration::from_millis(random.below(400)),
    }
}

/// The request of a CREATE, for the check of its answer.
fn opening(create: &Smb2CreateParameters<'_>) -> TraceRequest {
    TraceRequest::Open {
        name: create.name.to_owned(),
        disposition: create.disposition,
        has_oplock: create.oplock > 0,
    }
}

fn run(seed: u64, steps: usize, consistency: ConsistencyMode) -> TraceCounts {
    let mut run = ModelRun::new(seed, consistency);
    for _ in 0..steps {
        run.clients_act();
        run.trouble();
        let span = match run.random.below(12) {
            0..=5 => Duration::ZERO,
            6..=10 => Duration::from_millis(run.random.below(160)),
            _ => Duration::from_millis(run.random.below(3_000)),
        };
        run.go_on(span);
    }
    match run.end() {
        Ok(count) => count,
        Err(what) => panic!("seed {seed}: {what}"),
    }
}

/// Runs all seeds even if one fails, and names the failed ones.
#[allow(clippy::disallowed_macros)]
fn run_all(seeds: std::ops::Range<u64>, steps: usize, consistency: ConsistencyMode) {
    let (mut all, mut failed) = (TraceCounts::default(), Vec::new());
    for seed in seeds {
        println!("seed {seed}");
        // The server panics at what no client may say.
        match std::panic::catch_unwind(|| run(seed, steps, consistency)) {
            Ok(count) => all.add(count),
            Err(_) => failed.push(seed),
        }
    }
    println!("{all:?}");
    assert!(failed.is_empty(), "seeds {failed:?}");
    // Otherwise nothing was tried.
    assert!(all.opened_at_once > 0 && all.listed_at_once > 0);
    assert!(all.reads > 0 && all.at_once > 0 && all.lost > 0 && all.waits > 0);
}

#[test]
fn two_random_clients_match_direct_clients() {
    run_all(0..100, 150, ConsistencyMode::Strict);
}

/// The first of two equal changes of the length is lost on a cut path, after another client has opened the file,
/// and the server does the second: what is read between them is what the server has.
#[test]
fn lost_change_of_the_length_is_not_taken_for_a_later_one() {
    let mut run = ModelRun::new(1, ConsistencyMode::Strict);
    let open = |run: &mut ModelRun, who: usize| {
        let create = Smb2CreateParameters::open("a");
        let is_for = HandleUse::Data { may_write: true };
        run.ask(
            who,
            &create.request(),
            opening(&create),
            Some((is_for, false)),
        );
        while run.handles[who].is_empty() {
            run.go_on(Duration::from_secs(1));
        }
        run.handles[who][0].file
    };
    let file = open(&mut run, 0);
    let start = run.world.now;
    run.world.is_cut = true;
    run.set_length(0, file, messages::set_allocation(file, 0), 0);
    run.go_on(Duration::ZERO);
    assert!(run.waits[0].is_empty(), "it is answered at once");
    let other = open(&mut run, 1);
    run.write(1, other, 500, 400);
    run.trouble.cuts.push(start..run.world.now);
    run.world.is_cut = false;
    run.go_on(Duration::from_secs(2));
    run.read(0, file, 600, 100);
    run.go_on(Duration::from_secs(2));
    run.set_length(0, file, messages::set_allocation(file, 0), 0);
    run.go_on(Duration::from_secs(2));
    let counts = run.end().unwrap();
    assert_eq!((counts.lost, counts.stale), (1, 0));
}

#[test]
fn nor_where_files_are_opened_ahead() {
    run_all(0..100, 150, RELAXED);
}

/// The same for as long as it takes, both side by side:
/// `cargo test -p accelerate --release --lib -- --ignored thousands_of_times`.
#[test]
#[ignore = "takes minutes"]
fn two_clients_at_random_thousands_of_times() {
    run_all(1_000..6_000, 300, ConsistencyMode::Strict);
}

/// See above.
#[test]
#[ignore = "takes minutes"]
fn files_opened_ahead_at_random_thousands_of_times() {
    run_all(1_000..6_000, 300, RELAXED);
}
