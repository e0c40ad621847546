//! What one engine keeps of an accelerator for all of its flows.
//!
//! An engine starts one [`SharedState`] of each accelerator from its settings and has it build the
//! halves of every flow. A half reaches what is shared by a handle of the accelerator's own (an
//! `Arc<Mutex<…>>`) that it was built with; the engine knows neither the handle nor its type. An
//! accelerator whose flows share nothing is [`Unshared`].

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use vocab::{Random, Time};

use crate::credentials::Delegated;
use crate::settings::AcceleratorSettings;
use crate::{Accelerator, Half};

/// What an engine gives an accelerator as it starts.
#[derive(Debug)]
pub struct StartContext {
    /// Chance that no other accelerator has.
    pub chance: Random,
}

/// What a half is built with.
#[derive(Debug)]
pub struct HalfContext {
    /// The engine's number of the flow.
    pub flow: u64,
    /// The client's address.
    pub client: SocketAddr,
    /// The server's address.
    pub server: SocketAddr,
    /// The keys that the operator has delegated to this node.
    pub delegated: Delegated,
    /// Chance that no other flow has.
    pub chance: Random,
}

/// What one engine keeps of an accelerator for all of its flows.
pub trait SharedState: Send {
    /// Takes other settings of the same accelerator, which hold for flows that begin from here on.
    fn configure(&mut self, settings: &Arc<dyn AcceleratorSettings>);

    /// Takes the time on the calendar at this moment of the engine's clock. It comes after the start and then again
    /// and again, since the calendar can be set.
    fn set_calendar(&mut self, now: Time, since_1970: Duration) {
        let _ = (now, since_1970);
    }

    /// Builds one half for one flow.
    fn build(&mut self, half: Half, context: HalfContext) -> Box<dyn Accelerator>;
}

/// How an accelerator whose flows share nothing builds a half from its settings.
pub type BuildHalf<S> = fn(&S, Half, HalfContext) -> Box<dyn Accelerator>;

/// The shared state of an accelerator whose flows share nothing: its settings.
pub struct Unshared<S> {
    settings: S,
    build: BuildHalf<S>,
}

impl<S: AcceleratorSettings + Clone> Unshared<S> {
    /// Builds halves by `build`, with these settings.
    pub fn new(settings: S, build: BuildHalf<S>) -> Self {
        Self { settings, build }
    }
}

impl<S: AcceleratorSettings + Clone> SharedState for Unshared<S> {
    fn configure(&mut self, settings: &Arc<dyn AcceleratorSettings>) {
        self.settings = settings.expect::<S>().clone();
    }

    fn build(&mut self, half: Half, context: HalfContext) -> Box<dyn Accelerator> {
        (self.build)(&self.settings, half, context)
    }
}
