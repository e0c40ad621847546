//! Connections of a run, which the client opens one after the other.

use std::net::{SocketAddr, TcpStream};

use anyhow::{Context, Result, ensure};
use measure::session::RunConnections;
use measure::wire::TestDirection;
use socket2::{Domain, Protocol, Socket, Type};

use super::super::conversation::{MessageWriter, only_message};
use super::super::greeting::{CONNECT_MAX, GREETING_MAX};
use super::super::local_limits;
use super::super::options::RunOptions;
use super::super::transfers::{RunTransfers, prepare_receiver, prepare_sender};
use host::tester_sockets as system;

/// Opener of connections to a server.
pub(super) struct ConnectionOpener<'a> {
    pub(super) options: &'a RunOptions,
    pub(super) server: SocketAddr,
}

impl ConnectionOpener<'_> {
    /// Opens all connections of a run.
    ///
    /// # Errors
    /// Fails when one of them cannot be opened, or `is_over` returns true.
    pub(super) fn open_all(
        &self,
        run: &RunConnections,
        is_over: &dyn Fn() -> bool,
    ) -> Result<RunTransfers> {
        let [send_window, window] = run.plan.windows;
        let mut transfers = RunTransfers {
            window,
            send_window,
            duration: run.plan.duration,
            ..RunTransfers::default()
        };
        for plan in run.plans() {
            ensure!(!is_over(), "the run was given up");
            let socket = self.socket()?;
            if let Some(segment) = plan.segment_max {
                socket.set_tcp_mss(u32::from(segment))?;
            }
            match plan.direction {
                TestDirection::Up => {
                    prepare_sender(&socket, plan.window);
                    local_limits::set_congestion_control(&socket, &run.congestion_control)?;
                }
                TestDirection::Down => prepare_receiver(&socket, plan.window),
            }
            let stream = self.join(socket, run, plan.number)?;
            match plan.direction {
                TestDirection::Up => transfers.sending.push((plan.number, stream)),
                TestDirection::Down => transfers.receiving.push((plan.number, stream)),
            }
        }
        Ok(transfers)
    }

    fn socket(&self) -> Result<Socket> {
        let socket = Socket::new(
            Domain::for_address(self.server),
            Type::STREAM,
            Some(Protocol::TCP),
        )?;
        if let Some(address) = self.options.bind {
            socket.bind(&SocketAddr::new(address, 0).into())?;
        }
        system::mark(&socket, self.options.dscp)?;
        Ok(socket)
    }

    fn join(&self, socket: Socket, run: &RunConnections, number: u16) -> Result<TcpStream> {
        socket
            .connect_timeout(&self.server.into(), CONNECT_MAX)
            .with_context(|| format!("opening connection {number} of the run"))?;
        let stream = TcpStream::from(socket);
        let writer = MessageWriter::new(&stream)?;
        let greeting = only_message(&stream, GREETING_MAX)?;
        writer.send(&run.join(&greeting, number)?)?;
        Ok(stream)
    }
}
