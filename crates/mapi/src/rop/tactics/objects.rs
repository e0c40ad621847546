//! The server's objects of one session, as far as requests and answers tell.

use std::collections::BTreeMap;

use accelerate::shared::SharedHandle;

use super::super::buffer::RopBuffer;
use super::super::id;
use super::super::request::{RequestDetail, RequestRop};
use super::super::response::{ResponseDetail, ResponseList, ResponseTail, read_responses};

/// Objects that are followed. Servers allow some hundreds of each kind.
const OBJECTS_MAX: usize = 4096;

/// Messages and attachments inside one another that are followed.
const ANCESTORS_MAX: usize = 16;

/// An object that a client opened.
#[derive(Clone, Debug)]
pub(super) struct ServerObject {
    /// The object that it was opened through.
    pub(super) parent: Option<u32>,
    pub(super) role: ObjectRole,
}

#[derive(Clone, Debug)]
pub(super) enum ObjectRole {
    Stream {
        tag: u32,
        is_read_only: bool,
        /// Its cursor, if it is known.
        position: Option<u64>,
    },
    Table {
        columns: Option<Vec<u32>>,
    },
    /// A message, an attachment or the target of a transfer: it fails with what is inside it.
    Item,
    Other,
}

/// See the module documentation.
#[derive(Debug, Default)]
pub(super) struct ServerObjects {
    objects: BTreeMap<u32, ServerObject>,
}

/// The objects of one session, for all connections that use it. A clone has the same objects.
#[derive(Clone, Debug)]
pub(super) struct SessionObjects(SharedHandle<ServerObjects>);

impl Default for SessionObjects {
    fn default() -> Self {
        Self(SharedHandle::new(ServerObjects::default()))
    }
}

impl SessionObjects {
    /// Works on the objects.
    pub(super) fn with<R>(&self, work: impl FnOnce(&mut ServerObjects) -> R) -> R {
        self.0.with(work)
    }
}

impl ServerObjects {
    pub(super) fn get(&self, handle: u32) -> Option<&ServerObject> {
        self.objects.get(&handle)
    }

    /// The items around an object, from the inside; `None` if one of its ancestors is not known.
    pub(super) fn items_around(&self, handle: u32) -> Option<Vec<u32>> {
        let mut items = Vec::new();
        let mut object = self.objects.get(&handle)?;
        for _ in 0..ANCESTORS_MAX {
            let parent = object.parent?;
            object = self.objects.get(&parent)?;
            match object.role {
                ObjectRole::Item => items.push(parent),
                ObjectRole::Stream { .. } | ObjectRole::Table { .. } | ObjectRole::Other => {
                    return Some(items);
                }
            }
        }
        None
    }

    /// An object is released.
    pub(super) fn forget(&mut self, handle: u32) {
        self.objects.remove(&handle);
    }

    pub(super) fn forget_all(&mut self) {
        self.objects.clear();
    }

    /// Records the cursor of a stream.
    pub(super) fn set_position(&mut self, handle: u32, value: Option<u64>) {
        if let Some(ServerObject {
            role: ObjectRole::Stream { position, .. },
            ..
        }) = self.objects.get_mut(&handle)
        {
            *position = value;
        }
    }

    /// Reads the answer to a batch, and follows its effects. A chain repeats the last ROP.
    pub(super) fn observe(
        &mut self,
        requests: &[RequestRop],
        asked: &RopBuffer,
        answers: &[RopBuffer],
    ) -> Vec<ResponseList> {
        let columns = |place: usize| {
            let index = requests[place].index;
            let set = requests[..place].iter().rev().find_map(|request| {
                match (&request.detail, request.id, request.index == index) {
                    (RequestDetail::Tags(tags), id::SET_COLUMNS, true) => Some(tags.clone()),
                    _ => None,
                }
            });
            set.or_else(|| match &self.objects.get(&asked.handle(index)?)?.role {
                ObjectRole::Table { columns } => columns.clone(),
                ObjectRole::Stream { .. } | ObjectRole::Item | ObjectRole::Other => None,
            })
        };
        let last = requests.len().saturating_sub(1);
        let lists: Vec<ResponseList> = answers
            .iter()
            .enumerate()
            .map(|(number, answer)| match number {
                0 => read_responses(requests, answer, columns),
                _ => {
                    let repeated = &requests[last..];
                    let mut list = read_responses(repeated, answer, |_| columns(last));
                    for response in &mut list.responses {
                        response.request += last;
                    }
                    list.unexecuted = list.unexecuted.map(|place| place + last);
                    list
                }
            })
            .collect();
        self.apply(requests, asked, answers, &lists);
        lists
    }

    fn apply(
        &mut self,
        requests: &[RequestRop],
        asked: &RopBuffer,
        answers: &[RopBuffer],
        lists: &[ResponseList],
    ) {
        let is_clean = is_clean(lists);
        let requests = executed(requests, lists);
        let output = |index: u8| answers.first().and_then(|answer| answer.handle(index));
        for (place, request) in requests.iter().enumerate() {
            let handle = |index: u8| {
                let is_new = requests[..place]
                    .iter()
                    .any(|earlier| earlier.output() == Some(index));
                match is_new {
                    true => output(index),
                    false => asked.handle(index),
                }
            };
            let responses: Vec<_> = lists
                .iter()
                .flat_map(|list| &list.responses)
                .filter(|response| response.request == place)
                .collect();
            if request.id == id::RELEASE {
                if let Some(released) = handle(request.index) {
                    self.objects.remove(&released);
                }
                continue;
            }
            let succeeded = responses.first().is_some_and(|first| first.result == 0);
            for input in request.inputs().filter_map(handle) {
                self.apply_input(request, input, &responses, succeeded);
            }
            if let Some(index) = request.output() {
                let Some(created) = output(index) else {
                    continue;
                };
                self.objects.remove(&created);
                if succeeded && is_clean && self.objects.len() < OBJECTS_MAX {
                    let object = ServerObject {
                        parent: request.inputs().find_map(handle),
                        role: self.role(request, handle(request.index)),
                    };
                    self.objects.insert(created, object);
                }
            }
        }
    }

    fn role(&self, request: &RequestRop, source: Option<u32>) -> ObjectRole {
        match (request.id, &request.detail) {
            (_, RequestDetail::OpenStream { tag, mode }) => ObjectRole::Stream {
                tag: *tag,
                is_read_only: *mode == 0,
                position: Some(0),
            },
            (
                id::GET_HIERARCHY_TABLE
                | id::GET_CONTENTS_TABLE
                | id::GET_ATTACHMENT_TABLE
                | id::GET_PERMISSIONS_TABLE
                | id::GET_RULES_TABLE,
                _,
            ) => ObjectRole::Table { columns: None },
            (id::CLONE_STREAM, _) => {
                let role = source
                    .and_then(|source| self.objects.get(&source))
                    .map(|object| object.role.clone());
                match role {
                    Some(ObjectRole::Stream {
                        tag, is_read_only, ..
                    }) => ObjectRole::Stream {
                        tag,
                        is_read_only,
                        position: None,
                    },
                    Some(ObjectRole::Table { .. } | ObjectRole::Item | ObjectRole::Other)
                    | None => ObjectRole::Other,
                }
            }
            (
                id::OPEN_MESSAGE
                | id::CREATE_MESSAGE
                | id::OPEN_EMBEDDED_MESSAGE
                | id::OPEN_ATTACHMENT
                | id::CREATE_ATTACHMENT
                | id::DESTINATION_CONFIGURE,
                _,
            ) => ObjectRole::Item,
            _ => ObjectRole::Other,
        }
    }

    fn apply_input(
        &mut self,
        request: &RequestRop,
        input: u32,
        responses: &[&super::super::response::ResponseRop],
        succeeded: bool,
    ) {
        let Some(object) = self.objects.get_mut(&input) else {
            return;
        };
        match &mut object.role {
            ObjectRole::Stream { position, .. } => match request.id {
                id::READ_STREAM | id::WRITE_STREAM => {
                    if responses.is_empty() || !succeeded {
                        *position = None;
                    }
                    for response in responses {
                        let moved = match response.detail {
                            ResponseDetail::Data { length, .. } => length as u64,
                            ResponseDetail::Written { size } => u64::from(size),
                            _ => 0,
                        };
                        *position = match response.result {
                            0 => position.map(|position| position.saturating_add(moved)),
                            _ => None,
                        };
                    }
                }
                id::SEEK_STREAM => {
                    *position = match responses.first().map(|first| first.detail) {
                        Some(ResponseDetail::Position(now)) => Some(now),
                        _ => None,
                    };
                }
                id::GET_STREAM_SIZE | id::COMMIT_STREAM | id::CLONE_STREAM => {}
                _ => *position = None,
            },
            ObjectRole::Table { columns } => match (request.id, &request.detail) {
                (id::SET_COLUMNS, RequestDetail::Tags(tags)) if succeeded => {
                    *columns = Some(tags.clone());
                }
                (id::SET_COLUMNS | id::RESET_TABLE, _) => *columns = None,
                _ => {}
            },
            ObjectRole::Item | ObjectRole::Other => {}
        }
    }
}

/// True if the server executed only some of the ROPs, because the client has no room for the rest.
pub(super) fn is_too_small(lists: &[ResponseList]) -> bool {
    lists.iter().any(|list| list.unexecuted.is_some())
}

/// The ROPs of a request that the server executed, as far as responses tell.
pub(super) fn executed<'a>(requests: &'a [RequestRop], lists: &[ResponseList]) -> &'a [RequestRop] {
    match lists.iter().find_map(|list| list.unexecuted) {
        Some(place) => &requests[..place.min(requests.len())],
        None => requests,
    }
}

/// True if all responses were read.
pub(super) fn is_clean(lists: &[ResponseList]) -> bool {
    lists
        .iter()
        .all(|list| !matches!(list.tail, ResponseTail::Unknown(_)))
}
