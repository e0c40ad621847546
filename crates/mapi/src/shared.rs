//! The state that all flows of one engine share: the settings, the ports that endpoint mappers have
//! named, and the sessions that several connections use.

use std::net::SocketAddr;
use std::sync::Arc;

use accelerate::settings::AcceleratorSettings;
use accelerate::shared::{HalfContext, SharedHandle, SharedInput, SharedOutput, SharedState};
use accelerate::{AcceleratorHalf, CarriedFlow, CarriedProtocol, WanEnd};
use vocab::Time;

use crate::config::MapiSettings;
use crate::entry::ENDPOINT_MAPPER;
use crate::epm_watch::EndpointWatch;
use crate::far::MapiFarHalf;
use crate::http::{HttpMailNearHalf, HttpMailProtocol, SequenceTable};
use crate::learnt_ports::LearntPorts;
use crate::near::MapiNearHalf;
use crate::rop::tactics::{SessionPlace, SessionTable};

/// The shared state of the accelerator.
pub(crate) struct MapiState {
    settings: MapiSettings,
    learnt: SharedHandle<LearntPorts>,
    by_http: HttpMailProtocol,
}

impl MapiState {
    /// Begins with no port learnt.
    pub(crate) fn new(settings: MapiSettings) -> Self {
        Self {
            settings,
            learnt: SharedHandle::new(LearntPorts::default()),
            by_http: HttpMailProtocol {
                sessions: SharedHandle::new(SessionTable::default()),
                sequences: SharedHandle::new(SequenceTable::default()),
            },
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
        if self.settings.http_ports.contains(&server.port()) {
            return match half {
                WanEnd::Near => Box::new(HttpMailNearHalf::new(true)),
                WanEnd::Far => {
                    let half = self.by_http.far(CarriedFlow {
                        flow: context.flow,
                        client: context.client,
                        server,
                        may_store: true,
                    });
                    match self.settings.is_on {
                        true => Box::new(half),
                        false => Box::new(half.switched_off()),
                    }
                }
            };
        }
        let sessions = self.by_http.sessions.clone();
        let place = SessionPlace::new(sessions, context.flow, context.client.ip(), server.ip());
        match half {
            WanEnd::Near => Box::new(MapiNearHalf::new(may_store)),
            WanEnd::Far if !self.settings.is_on => Box::new(MapiFarHalf::switched_off(place)),
            WanEnd::Far => Box::new(MapiFarHalf::new(may_store, context.delegated, place)),
        }
    }

    fn carried(&self) -> Option<Arc<dyn CarriedProtocol>> {
        let by_http: Arc<dyn CarriedProtocol> = Arc::new(self.by_http.clone());
        self.settings.is_on.then_some(by_http)
    }

    fn handle(&mut self, _: Time, input: SharedInput) {
        if let SharedInput::FlowEnded(flow) = input {
            let sessions = &self.by_http.sessions;
            sessions.with(|sessions| sessions.ended(flow));
        }
    }

    fn poll_output(&mut self) -> Option<SharedOutput> {
        let flow = self.by_http.sessions.with(SessionTable::poll_wake)?;
        Some(SharedOutput::Wake(flow))
    }

    fn serves(&mut self, now: Time, server: SocketAddr) -> bool {
        let is_fixed = self.settings.http_ports.contains(&server.port());
        self.settings.is_on && (is_fixed || self.learnt.with(|learnt| learnt.serve(now, server)))
    }
}
