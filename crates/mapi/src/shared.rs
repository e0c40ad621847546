//! The state that all flows of one engine share: the settings, the ports that endpoint mappers have
//! named, and the sessions that several connections use.

use std::net::SocketAddr;
use std::sync::Arc;

use accelerate::settings::AcceleratorSettings;
use accelerate::shared::{HalfContext, SharedHandle, SharedInput, SharedOutput, SharedState};
use accelerate::{AcceleratorHalf, WanEnd};
use vocab::Time;

use crate::config::MapiSettings;
use crate::entry::ENDPOINT_MAPPER;
use crate::epm_watch::EndpointWatch;
use crate::far::MapiFarHalf;
use crate::http::{HttpMailFarHalf, HttpMailNearHalf, SequenceTable};
use crate::learnt_ports::LearntPorts;
use crate::near::MapiNearHalf;
use crate::rop::tactics::{SessionPlace, SessionTable};

/// The shared state of the accelerator.
pub(crate) struct MapiState {
    settings: MapiSettings,
    learnt: SharedHandle<LearntPorts>,
    sessions: SharedHandle<SessionTable>,
    sequences: SharedHandle<SequenceTable>,
}

impl MapiState {
    /// Begins with no port learnt.
    pub(crate) fn new(settings: MapiSettings) -> Self {
        Self {
            settings,
            learnt: SharedHandle::new(LearntPorts::default()),
            sessions: SharedHandle::new(SessionTable::default()),
            sequences: SharedHandle::new(SequenceTable::default()),
        }
    }
}

impl SharedState for MapiState {
    fn configure(&mut self, settings: &Arc<dyn AcceleratorSettings>) {
        self.settings = settings.expect::<MapiSettings>().clone();
    }

    fn build(&mut self, half: WanEnd, context: HalfContext) -> Box<dyn AcceleratorHalf> {
        let server = context.server;
        if server.port() == ENDPOINT_MAPPER {
            let learnt = self.learnt.clone();
            return Box::new(EndpointWatch::new(half, server.ip(), learnt));
        }
        let may_store = self.settings.may_store_decrypted;
        let place = SessionPlace::new(
            self.sessions.clone(),
            context.flow,
            context.client.ip(),
            server.ip(),
        );
        if self.settings.http_ports.contains(&server.port()) {
            return match half {
                WanEnd::Near => Box::new(HttpMailNearHalf::new()),
                WanEnd::Far => {
                    let sequences = self.sequences.clone();
                    let half = HttpMailFarHalf::new(server.ip(), context.flow, place, sequences);
                    match self.settings.is_on {
                        true => Box::new(half),
                        false => Box::new(half.switched_off()),
                    }
                }
            };
        }
        match half {
            WanEnd::Near => Box::new(MapiNearHalf::new(may_store)),
            WanEnd::Far if !self.settings.is_on => Box::new(MapiFarHalf::switched_off(place)),
            WanEnd::Far => Box::new(MapiFarHalf::new(may_store, context.delegated, place)),
        }
    }

    fn handle(&mut self, _: Time, input: SharedInput) {
        if let SharedInput::FlowEnded(flow) = input {
            self.sessions.with(|sessions| sessions.ended(flow));
        }
    }

    fn poll_output(&mut self) -> Option<SharedOutput> {
        let flow = self.sessions.with(SessionTable::poll_wake)?;
        Some(SharedOutput::Wake(flow))
    }

    fn serves(&mut self, now: Time, server: SocketAddr) -> bool {
        let is_fixed = self.settings.http_ports.contains(&server.port());
        self.settings.is_on && (is_fixed || self.learnt.with(|learnt| learnt.serve(now, server)))
    }
}
