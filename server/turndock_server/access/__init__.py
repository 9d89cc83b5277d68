"""Who calls: tokens, JSON Web Tokens and certificates, each of which leads to a principal with a role and a scope."""

from turndock_server.access.authentication import Authenticator as Authenticator
from turndock_server.access.authentication import authenticator_of as authenticator_of
from turndock_server.access.principal import Principal as Principal
from turndock_server.access.principal import Role as Role
