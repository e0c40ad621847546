//! The calls around a session: EcDoConnect, EcDoConnectEx, EcDoDisconnect, EcDoAsyncConnectEx and
//! EcDoAsyncWaitEx ([MS-OXCRPC] §3.1.4 and §3.3.4).
//!
//! The accelerator passes their stubs on as they are; it reads the context handles from them.

use bytes::Bytes;

use super::ndr::{NdrReader, NdrWriter};
use super::rpc::AUXILIARY_MAX;
use super::{ContextHandle, EmsmdbError, opnum};

/// The referent of the first string of an answer. Any number but zero means a pointer.
const FIRST_REFERENT: u32 = 0x0002_0000;

/// The auxiliary data of EcDoConnectEx.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectAuxiliary {
    /// The auxiliary buffer, as it is.
    pub bytes: Bytes,
    /// The most auxiliary bytes that the client takes; zero in an answer.
    pub most: u32,
}

/// A request to open a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectRequest {
    /// The user's distinguished name, with its NUL.
    pub user: Bytes,
    /// ulFlags, ulConMod, cbLimit, ulCpid, ulLcidString, ulLcidSort and ulIcxrLink.
    pub settings: [u32; 7],
    /// usFCanConvertCodePages.
    pub can_convert: u16,
    /// The client's version.
    pub version: [u16; 3],
    /// pulTimeStamp.
    pub time_stamp: u32,
    /// Only EcDoConnectEx has it.
    pub auxiliary: Option<ConnectAuxiliary>,
}

impl ConnectRequest {
    /// Reads the stub of EcDoConnect or EcDoConnectEx.
    ///
    /// # Errors
    /// [`EmsmdbError`] when it has another form.
    pub fn read(opnum: u16, stub: &Bytes) -> Result<Self, EmsmdbError> {
        let mut reader = NdrReader::new(stub);
        let (_, user) = reader.varying()?;
        let mut settings = [0; 7];
        for setting in &mut settings {
            *setting = reader.u32()?;
        }
        let can_convert = reader.u16()?;
        let version = reader.version()?;
        let time_stamp = reader.u32()?;
        let auxiliary = match opnum {
            opnum::CONNECT => None,
            opnum::CONNECT_EX => {
                let bytes = reader.conformant()?;
                let (count, most) = (reader.u32()?, reader.u32()?);
                if count as usize != bytes.len() || count > AUXILIARY_MAX {
                    return Err(EmsmdbError::Contradiction("cbAuxIn"));
                }
                Some(ConnectAuxiliary { bytes, most })
            }
            _ => return Err(EmsmdbError::Contradiction("opnum")),
        };
        reader.finish()?;
        Ok(Self {
            user,
            settings,
            can_convert,
            version,
            time_stamp,
            auxiliary,
        })
    }

    /// Writes the stub.
    #[must_use]
    pub fn write(&self) -> Bytes {
        let mut writer = NdrWriter::default();
        writer.varying(self.user.len() as u32, &self.user);
        for setting in self.settings {
            writer.u32(setting);
        }
        writer.u16(self.can_convert).version(self.version);
        writer.u32(self.time_stamp);
        if let Some(auxiliary) = &self.auxiliary {
            writer.conformant(&auxiliary.bytes);
            writer.u32(auxiliary.bytes.len() as u32).u32(auxiliary.most);
        }
        writer.finish()
    }
}

/// The answer that opens a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectResponse {
    /// The session; null if the connect failed.
    pub context: ContextHandle,
    /// pcmsPollsMax, pcRetry and pcmsRetryDelay.
    pub polling: [u32; 3],
    /// The number that other sessions link to (piCxr).
    pub session_index: u16,
    /// szDNPrefix.
    pub name_prefix: Option<Bytes>,
    /// szDisplayName.
    pub display_name: Option<Bytes>,
    /// The server's version.
    pub server_version: [u16; 3],
    /// rgwBestVersion. Only EcDoConnectEx has it.
    pub best_version: Option<[u16; 3]>,
    /// pulTimeStamp.
    pub time_stamp: u32,
    /// Only EcDoConnectEx has it.
    pub auxiliary: Option<Bytes>,
    /// Zero is success.
    pub result: u32,
}

impl ConnectResponse {
    /// Reads the stub of an answer to EcDoConnect or EcDoConnectEx.
    ///
    /// # Errors
    /// [`EmsmdbError`] when it has another form.
    pub fn read(opnum: u16, stub: &Bytes) -> Result<Self, EmsmdbError> {
        let is_extended = match opnum {
            opnum::CONNECT => false,
            opnum::CONNECT_EX => true,
            _ => return Err(EmsmdbError::Contradiction("opnum")),
        };
        let mut reader = NdrReader::new(stub);
        let context = reader.context()?;
        let polling = [reader.u32()?, reader.u32()?, reader.u32()?];
        let session_index = reader.u16()?;
        let name_prefix = reader.unique_string()?;
        let display_name = reader.unique_string()?;
        let server_version = reader.version()?;
        let best_version = is_extended.then(|| reader.version()).transpose()?;
        let time_stamp = reader.u32()?;
        let auxiliary = match is_extended {
            true => {
                let (_, bytes) = reader.varying()?;
                if reader.u32()? as usize != bytes.len() {
                    return Err(EmsmdbError::Contradiction("pcbAuxOut"));
                }
                Some(bytes)
            }
            false => None,
        };
        let result = reader.u32()?;
        reader.finish()?;
        Ok(Self {
            context,
            polling,
            session_index,
            name_prefix,
            display_name,
            server_version,
            best_version,
            time_stamp,
            auxiliary,
            result,
        })
    }

    /// Writes the stub.
    #[must_use]
    pub fn write(&self) -> Bytes {
        let mut writer = NdrWriter::default();
        writer.context(self.context);
        for number in self.polling {
            writer.u32(number);
        }
        writer.u16(self.session_index);
        writer.unique_string(FIRST_REFERENT, self.name_prefix.as_ref());
        writer.unique_string(FIRST_REFERENT + 4, self.display_name.as_ref());
        writer.version(self.server_version);
        if let Some(version) = self.best_version {
            writer.version(version);
        }
        writer.u32(self.time_stamp);
        if let Some(auxiliary) = &self.auxiliary {
            let length = auxiliary.len() as u32;
            writer.varying(length, auxiliary).u32(length);
        }
        writer.u32(self.result);
        writer.finish()
    }
}

/// A stub of a context handle and a number: the answers to EcDoDisconnect, and both directions of
/// EcDoAsyncConnectEx (whose request has no number) read alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContextStub {
    /// The handle.
    pub context: ContextHandle,
    /// The result in an answer, the flags in a request of EcDoAsyncWaitEx.
    pub number: Option<u32>,
}

impl ContextStub {
    /// Reads the stub.
    ///
    /// # Errors
    /// [`EmsmdbError`] when it has another form.
    pub fn read(stub: &Bytes) -> Result<Self, EmsmdbError> {
        let mut reader = NdrReader::new(stub);
        let context = reader.context()?;
        let number = match stub.len() > 20 {
            true => Some(reader.u32()?),
            false => None,
        };
        reader.finish()?;
        Ok(Self { context, number })
    }

    /// Writes the stub.
    #[must_use]
    pub fn write(&self) -> Bytes {
        let mut writer = NdrWriter::default();
        writer.context(self.context);
        if let Some(number) = self.number {
            writer.u32(number);
        }
        writer.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connects_of_both_generations_read_back_equal() {
        for (opnum, auxiliary) in [
            (opnum::CONNECT, None),
            (
                opnum::CONNECT_EX,
                Some(ConnectAuxiliary {
                    bytes: Bytes::from_static(&[0, 0, 4, 0, 0, 0, 0, 0]),
                    most: 0x1008,
                }),
            ),
        ] {
            let request = ConnectRequest {
                user: Bytes::from_static(b"/o=Lab/cn=Recipients/cn=anna\0"),
                settings: [0, 1, 0, 1252, 1033, 1033, 0xffff_ffff],
                can_convert: 1,
                version: [11, 0x8000, 5608],
                time_stamp: 3,
                auxiliary,
            };
            let stub = request.write();
            assert_eq!(ConnectRequest::read(opnum, &stub).unwrap(), request);
            let is_extended = opnum == opnum::CONNECT_EX;
            let response = ConnectResponse {
                context: ContextHandle([5; 20]),
                polling: [60_000, 6, 10_000],
                session_index: 1,
                name_prefix: Some(Bytes::from_static(b"\0")),
                display_name: Some(Bytes::from_static(b"Anna\0")),
                server_version: [6, 0, 6944],
                best_version: is_extended.then_some([11, 0, 5608]),
                time_stamp: 4,
                auxiliary: is_extended.then(|| Bytes::from_static(&[1; 9])),
                result: 0,
            };
            let stub = response.write();
            assert_eq!(ConnectResponse::read(opnum, &stub).unwrap(), response);
            assert!(ConnectResponse::read(opnum, &stub.slice(..stub.len() - 1)).is_err());
        }
    }

    #[test]
    fn context_stubs_read_back_equal() {
        for number in [None, Some(0x8004_0301)] {
            let stub = ContextStub {
                context: ContextHandle([9; 20]),
                number,
            };
            assert_eq!(ContextStub::read(&stub.write()).unwrap(), stub);
        }
    }
}
