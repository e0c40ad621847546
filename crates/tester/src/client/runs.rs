//! Client's part in TCP runs.

use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use measure::run;
use measure::turn_up::RunPlan;
use measure::wire::{ControlMessage, JoinMessage, RunOrder, RunSample, TestDirection};
use socket2::{Domain, Protocol, Socket, Type};

use super::super::conversation::{MessageReader, MessageWriter};
use super::super::transfers::{RunTransfers, prepare_receiver, prepare_sender};
use host::tester_sockets as system;

use super::super::{local_limits, plausible};
use super::{CONNECT_MAX, GREETING_MAX, ORDER_MAX, RawRun, TwoEndedTest, describe, unexpected};
use host::kernel;

impl TwoEndedTest<'_> {
    pub(super) fn tcp_run(&mut self, plan: RunPlan) -> Result<[Option<run::RunFigures>; 2]> {
        let order = self.number_order();
        self.writer.send(&ControlMessage::Run(RunOrder {
            order,
            connections: plan.connections,
            windows: plan.windows,
            duration: plan.duration,
            congestion_control: self.options.congestion_control.clone(),
        }))?;
        self.ready(order)?;
        let transfers = self.connect_all(order, &plan)?;
        let congestion_control = transfers
            .sending
            .first()
            .map(|(_, stream)| kernel::congestion_control(stream))
            .transpose()?
            .unwrap_or_default();
        self.ready(order)?;
        let busy = local_limits::ProcessorUsage::begin();
        let is_over = || self.line.is_over.load(Ordering::Relaxed) || (self.interrupted)();
        let (done, text) = (self.turn_up.progress(), describe(&plan));
        let transferred = transfers.run(&is_over, &mut |_| self.progress.step(done, &text));
        let own = busy.permille();
        if is_over() {
            let _ = self.writer.send(&ControlMessage::Stop { order });
        }
        let (down, server_control, theirs) = self.run_end(order, plan.duration)?;
        let sides = [
            (TestDirection::Up, transferred.samples, congestion_control),
            (TestDirection::Down, down, server_control),
        ];
        let mut figures = [None, None];
        for (direction, samples, congestion_control) in sides {
            if plan.connections[direction as usize] == 0 {
                continue;
            }
            let ideal = self.turn_up.ideal(direction);
            figures[direction as usize] =
                ideal.and_then(|ideal| run::figures(&samples, plan.duration, &ideal));
            self.runs.push(RawRun {
                plan,
                direction,
                seconds: run::seconds(&samples),
                samples,
                reads: Vec::new(),
                congestion_control,
                segments_retransmitted: None,
                busy_permille: [own, theirs],
            });
        }
        Ok(figures)
    }

    fn run_end(&self, order: u32, duration: Duration) -> Result<(Vec<RunSample>, String, u16)> {
        let mut samples = Vec::new();
        loop {
            match self.answer(ORDER_MAX)? {
                ControlMessage::Samples {
                    order: of,
                    samples: some,
                } if of == order => {
                    plausible::samples(duration, &some)?;
                    samples.extend(some);
                }
                ControlMessage::RunEnded {
                    order: of,
                    congestion_control,
                    busy_permille,
                } if of == order => return Ok((samples, congestion_control, busy_permille)),
                other => return Err(unexpected(&other)),
            }
        }
    }

    fn connect_all(&self, order: u32, plan: &RunPlan) -> Result<RunTransfers> {
        let [up, down] = plan.connections;
        let [send_window, window] = plan.windows;
        let mut transfers = RunTransfers {
            window,
            send_window,
            duration: plan.duration,
            ..RunTransfers::default()
        };
        for number in 0..up + down {
            let socket = self.socket()?;
            let direction = if number < up {
                TestDirection::Up
            } else {
                TestDirection::Down
            };
            let mtu = self.turn_up.mtu(direction);
            if mtu < self.interface_mtu {
                // Behind a black hole TCP is measured with the segments that pass, which it would find
                // by itself in minutes or never.
                let headers = self.turn_up.profile().tcp_headers as u32;
                socket.set_tcp_mss(u32::from(mtu).saturating_sub(headers))?;
            }
            if number < up {
                prepare_sender(&socket, plan.windows[0]);
                local_limits::set_congestion_control(&socket, &self.options.congestion_control)?;
            } else {
                prepare_receiver(&socket, window);
            }
            let stream = self.join(socket, order, number)?;
            match number < up {
                true => transfers.sending.push((number, stream)),
                false => transfers.receiving.push((number, stream)),
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

    fn join(&self, socket: Socket, order: u32, connection: u16) -> Result<TcpStream> {
        socket
            .connect_timeout(&self.server.into(), CONNECT_MAX)
            .with_context(|| format!("opening connection {connection} of the run"))?;
        let stream = TcpStream::from(socket);
        let writer = MessageWriter::new(&stream)?;
        let mut reader = MessageReader::new(stream);
        let ControlMessage::Hello { nonce, .. } = reader.only(GREETING_MAX)? else {
            bail!("the server did not greet a connection of the run");
        };
        writer.send(&ControlMessage::Join(JoinMessage {
            session: self.session,
            order,
            connection,
            proof: self.key.join(&nonce, order, connection),
        }))?;
        Ok(reader.into_stream())
    }
}
