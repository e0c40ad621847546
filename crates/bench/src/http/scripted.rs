//! A client that loads a page where no browser is installed: six connections, and what an object names is asked for as
//! soon as the object is there.
//!
//! It asks for no content coding, runs no script and draws nothing, so its times are not those of a browser.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result};

use super::client::{ClientPlace, WebConnection};
use lab::browser::{LoadedObject, LoadedPage};

/// Connections of browsers to one host by HTTP/1.1.
const CONNECTIONS: usize = 6;

/// State that the connections share.
#[derive(Debug, Default)]
struct PageQueue {
    waiting: VecDeque<String>,
    /// All that was ever queued.
    known: BTreeSet<String>,
    under_way: usize,
    objects: BTreeMap<String, LoadedObject>,
    failures: Vec<String>,
}

/// Loads a page from a path on.
///
/// # Errors
/// When the first connection cannot be opened.
pub(super) fn load(place: &ClientPlace, path: &str) -> Result<LoadedPage> {
    let began = Instant::now();
    let mut queue = PageQueue::default();
    queue.name(path.to_owned());
    let shared = (Mutex::new(queue), Condvar::new());
    thread::scope(|scope| {
        for _ in 0..CONNECTIONS {
            scope.spawn(|| serve_queue(place, &shared));
        }
    });
    let seconds = began.elapsed().as_secs_f64();
    let queue = shared
        .0
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner);
    Ok(LoadedPage {
        seconds,
        objects: queue.objects,
        failures: queue.failures,
        issuers: Vec::new(),
        screenshot: Vec::new(),
    })
}

/// Fetches what waits, over one connection, until nothing waits and nothing is under way that could name more.
fn serve_queue(place: &ClientPlace, (queue, changed): &(Mutex<PageQueue>, Condvar)) {
    let mut connection = None;
    let mut locked = queue.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        if let Some(path) = locked.waiting.pop_front() {
            locked.under_way += 1;
            drop(locked);
            let fetched = fetch(place, &mut connection, &path);
            locked = queue.lock().unwrap_or_else(PoisonError::into_inner);
            locked.under_way -= 1;
            match fetched {
                Ok(object) => locked.take(path, object),
                Err(error) => locked.failures.push(format!("{path}: {error:#}")),
            }
            changed.notify_all();
        } else if locked.under_way == 0 {
            return;
        } else {
            locked = changed.wait(locked).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

fn fetch(
    place: &ClientPlace,
    connection: &mut Option<WebConnection>,
    path: &str,
) -> Result<LoadedObject> {
    if connection.is_none() {
        *connection = place.connect(1)?.pop();
    }
    let connection = connection.as_mut().context("one was opened")?;
    connection.ask(path)?;
    let body = connection.receive()?;
    Ok(LoadedObject {
        status: 200,
        protocol: "http/1.1".to_owned(),
        body,
    })
}

impl PageQueue {
    fn name(&mut self, path: String) {
        if self.known.insert(path.clone()) {
            self.waiting.push_back(path);
        }
    }

    fn take(&mut self, path: String, object: LoadedObject) {
        if [".html", ".css"]
            .iter()
            .any(|ending| path.ends_with(ending))
        {
            for named in named_paths(&String::from_utf8_lossy(&object.body)) {
                self.name(named);
            }
        }
        self.objects.insert(path, object);
    }
}

/// Paths in `src`, `href` and `url()`.
fn named_paths(text: &str) -> Vec<String> {
    let mut named = Vec::new();
    for (begin, end) in [("src=\"/", '"'), ("href=\"/", '"'), ("url(/", ')')] {
        for part in text.split(begin).skip(1) {
            if let Some((path, _)) = part.split_once(end) {
                named.push(format!("/{path}"));
            }
        }
    }
    named
}

#[cfg(test)]
mod tests {
    use super::*;
    use lab::workload::{PAGE_PATH, WebPage};

    #[test]
    fn every_object_of_the_page_is_named_once_and_found() {
        let page = WebPage::generate(1);
        let mut queue = PageQueue::default();
        queue.name(PAGE_PATH.to_owned());
        while let Some(path) = queue.waiting.pop_front() {
            let object = LoadedObject {
                status: 200,
                protocol: "http/1.1".to_owned(),
                body: page.objects()[&path].clone(),
            };
            queue.take(path, object);
        }
        assert!(queue.objects.keys().eq(page.objects().keys()));
    }
}
