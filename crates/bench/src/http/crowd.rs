//! Many clients ask for one object at once that nobody has asked for before: how often is its origin asked?

use std::sync::Barrier;
use std::thread;
use std::time::Instant;

use anyhow::Result;
use serde_json::json;

use super::report::CellFigures;
use super::stand::{HttpStand, LAN_LINK, NodeHttpMode};
use super::{CLIENTS, HttpChoice};
use host::ProgramEnvironment;
use lab::topology::OffloadMode;

const FIGURE: &str = "origin_requests_for_1000_clients";
/// Bytes of the object.
const OBJECT_BYTES: usize = 10_000_000;
/// Stack of a client's thread, of which there are a thousand.
const STACK_BYTES: usize = 256 << 10;

/// Measures the cell.
///
/// # Errors
/// When a client does not get the object.
pub(super) fn measure(
    environment: &ProgramEnvironment,
    choice: &HttpChoice,
    step: &dyn Fn(&str),
) -> Result<CellFigures> {
    let mut stand = HttpStand::create(environment, OffloadMode::Kept, false)?;
    stand.set_link(&LAN_LINK.parse()?)?;
    stand.start_nodes(NodeHttpMode::On, &[])?;
    let path = "/fresh/crowd";
    let content = stand.origin().publish(path, OBJECT_BYTES, 1)?;
    step("connecting");
    let connections = stand.client().connect(choice.clients)?;
    step("asking");
    let began = Instant::now();
    let barrier = Barrier::new(choice.clients);
    let failures: Vec<String> = thread::scope(|scope| {
        let (barrier, content) = (&barrier, &content);
        let clients: Vec<_> = connections
            .into_iter()
            .map(|mut connection| {
                let builder = thread::Builder::new().stack_size(STACK_BYTES);
                builder.spawn_scoped(scope, move || {
                    barrier.wait();
                    connection.ask(path)?;
                    connection.read(content)
                })
            })
            .collect::<std::io::Result<_>>()?;
        let ended = clients.into_iter().map(|client| {
            client
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        let failures = ended.filter_map(|ended| ended.err());
        Ok::<_, anyhow::Error>(failures.map(|error| format!("{error:#}")).collect())
    })?;
    let seconds = began.elapsed().as_secs_f64();
    stand.check()?;
    let asked = stand.origin().requests_for(path)?;
    let mut figures = CellFigures::default();
    match choice.clients {
        CLIENTS => figures.add(FIGURE, asked),
        clients => figures.miss(FIGURE, &format!("{clients} clients asked; see raw")),
    }
    if let Some(failure) = failures.first() {
        let count = failures.len();
        figures
            .faults
            .push(format!("{count} clients did not get the object: {failure}"));
    }
    figures.raw = json!({
        "clients": choice.clients,
        "object_bytes": OBJECT_BYTES,
        "origin_requests": asked,
        "seconds": seconds,
    });
    Ok(figures)
}
